"""Options are read in any case, and whatever is wrong with them is told at once."""

from datetime import time, timedelta, timezone

import pytest

from millpond.errors import OptionError
from millpond.lookup import LookupOptions

STRATEGY = "lookup.full-cache.reload-strategy"
PERIODIC = "lookup.full-cache.periodic-reload."
TIMED = "lookup.full-cache.timed-reload."


def test_the_defaults_are_those_of_flink():
    assert LookupOptions.parse({}) == LookupOptions(mode="NONE", max_retries=3, cache_missing_key=True)


def test_names_and_words_are_read_in_any_case():
    options = LookupOptions.parse(
        {
            "LOOKUP.CACHE": "Partial",
            "lookup.partial-cache.Expire-After-Access": "10 Min",
            "lookup.partial-cache.cache-missing-key": "FALSE",
            "lookup.max-retries": "0",
        }
    )
    assert options == LookupOptions(
        mode="PARTIAL", max_retries=0, expire_after_access_ms=600_000, cache_missing_key=False
    )


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("5", 5), (5, 5), ("5 ms", 5), ("5s", 5_000), ("2 minutes", 120_000), ("1 h", 3_600_000), ("1 day", 86_400_000),
     ("3 seconds", 3_000), ("7 millis", 7), (timedelta(seconds=2), 2_000)],
)  # fmt: skip
def test_durations_have_units(text, expected_ms):
    options = {"lookup.cache": "FULL", "lookup.full-cache.periodic-reload.interval": text}
    assert LookupOptions.parse(options).reload_interval_ms == expected_ms


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"lookup.partial-cache.max-row": 1}, "did you mean 'lookup.partial-cache.max-rows'"),
        ({"lookup.max-rows": 5, "lookup.cache": "NONE"}, "unknown; did you mean"),
        ({"lookup.cache": "SOME"}, "one of NONE, PARTIAL, FULL, got 'SOME'"),
        ({"lookup.cache": "partial", "lookup.partial-cache.policy": "LFU"}, "one of LRU, W_TINYLFU, got 'LFU'"),
        ({"lookup.cache": "partial", "lookup.partial-cache.policy": "LRU"}, "needs a limit"),
        ({"lookup.max-retries": -1}, "whole number of 0 or more, got -1"),
        ({"lookup.cache": "partial"}, "needs a limit"),
        ({"lookup.cache": "full", "lookup.partial-cache.max-rows": 5}, "no effect with lookup.cache = FULL"),
        ({"lookup.partial-cache.max-rows": 5}, "no effect with lookup.cache = NONE"),
        ({"lookup.cache": "FULL", "lookup.full-cache.reload-strategy": "TIMED"}, "TIMED needs"),
        ({"lookup.cache": "FULL", "lookup.full-cache.periodic-reload.interval": "soon"}, "a duration such as"),
        ({"lookup.cache": "FULL", "lookup.full-cache.periodic-reload.interval": "0 s"}, "at least 1 ms"),
        ({"lookup.cache": "FULL", "lookup.full-cache.periodic-reload.schedule-mode": "FIXED_RATE"}, "interval"),
        ({"lookup.cache": "NONE", "LOOKUP.cache": "FULL"}, "given twice"),
        (
            {"lookup.cache": "FULL", TIMED + "iso-time": "2:30"},
            "no effect with lookup.full-cache.reload-strategy = PER",
        ),
        ({"lookup.cache": "FULL", STRATEGY: "timed", TIMED + "iso-time": "half past"}, "in ISO 8601.*'half past'"),
        ({"lookup.cache": "FULL", STRATEGY: "timed", TIMED + "iso-time": "25:00"}, "in ISO 8601"),
        ({"lookup.cache": "FULL", STRATEGY: "timed", TIMED + "interval-in-days": 0}, "1 or more, got 0"),
        ({"lookup.cache": "FULL", STRATEGY: "timed", PERIODIC + "interval": "1 h"}, "= TIMED; remove it or choose PER"),
        ({TIMED + "iso-time": "02:30"}, "no effect with lookup.cache = NONE"),
        ({"table.exec.async-lookup.buffer-capacity": 0}, "1 or more"),
        ({"lookup.cache": "PARTIAL", "lookup.partial-cache.max-bytes": "much"}, "a size such as"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_expected(options, complaint):
    with pytest.raises(OptionError, match=complaint):
        LookupOptions.parse(options)


def test_everything_wrong_is_told_at_once():
    with pytest.raises(OptionError) as caught:
        LookupOptions.parse({"lookup.cache": "all", "lookup.max-retries": "many", "lookup.cash": 1})
    assert str(caught.value).count("\n- ") == 3


def test_a_word_that_is_wrong_is_told_once_and_not_for_every_option_that_needs_it():
    options = {
        "lookup.cache": "partal",
        "lookup.partial-cache.max-rows": 5,
        "lookup.partial-cache.cache-missing-key": 1,
    }
    with pytest.raises(OptionError) as caught:
        LookupOptions.parse(options)
    assert str(caught.value).count("\n- ") == 2
    assert "no effect" not in str(caught.value)


def test_every_option_of_the_seed_is_read():
    partial = {
        "lookup.cache": "PARTIAL",
        "lookup.max-retries": "5",
        "lookup.partial-cache.expire-after-access": "1 min",
        "lookup.partial-cache.expire-after-write": "2 min",
        "lookup.partial-cache.cache-missing-key": "false",
        "lookup.partial-cache.max-rows": "7",
        "lookup.partial-cache.max-bytes": "64mb",
        "table.exec.async-lookup.buffer-capacity": "3",
        "table.exec.async-lookup.timeout": "1 s",
    }
    assert LookupOptions.parse(partial) == LookupOptions(
        mode="PARTIAL",
        max_retries=5,
        expire_after_access_ms=60_000,
        expire_after_write_ms=120_000,
        cache_missing_key=False,
        max_rows=7,
        max_bytes=64 << 20,
        async_capacity=3,
        async_timeout_ms=1_000,
    )
    periodic = {"lookup.cache": "FULL", STRATEGY: "PERIODIC", PERIODIC + "interval": "1 h"}
    assert LookupOptions.parse({**periodic, PERIODIC + "schedule-mode": "fixed_rate"}) == LookupOptions(
        mode="FULL", reload_interval_ms=3_600_000, schedule_mode="FIXED_RATE"
    )
    timed = {
        "lookup.cache": "FULL",
        STRATEGY: "TIMED",
        TIMED + "iso-time": "02:30+01:00",
        TIMED + "interval-in-days": 2,
    }
    assert LookupOptions.parse(timed) == LookupOptions(
        mode="FULL",
        reload_strategy="TIMED",
        reload_time=time(2, 30, tzinfo=timezone(timedelta(hours=1))),
        reload_interval_days=2,
    )


def test_options_that_were_parsed_are_taken_as_they_are():
    options = LookupOptions(mode="PARTIAL", max_rows=1)
    assert LookupOptions.parse(options) is options
