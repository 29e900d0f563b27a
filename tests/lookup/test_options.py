"""Options are read in any case, and whatever is wrong with them is told at once."""

from datetime import timedelta

import pytest

from millpond.errors import OptionError
from millpond.lookup import LookupOptions


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
        ({"lookup.max-retries": -1}, "whole number of 0 or more, got -1"),
        ({"lookup.cache": "partial"}, "needs a limit"),
        ({"lookup.cache": "full", "lookup.partial-cache.max-rows": 5}, "no effect with lookup.cache = FULL"),
        ({"lookup.partial-cache.max-rows": 5}, "no effect with lookup.cache = NONE"),
        ({"lookup.cache": "FULL", "lookup.full-cache.reload-strategy": "TIMED"}, "TIMED needs"),
        ({"lookup.cache": "FULL", "lookup.full-cache.periodic-reload.interval": "soon"}, "a duration such as"),
        ({"lookup.cache": "FULL", "lookup.full-cache.periodic-reload.interval": "0 s"}, "at least 1 ms"),
        ({"lookup.cache": "FULL", "lookup.full-cache.periodic-reload.schedule-mode": "FIXED_RATE"}, "interval"),
        ({"lookup.cache": "NONE", "LOOKUP.cache": "FULL"}, "given twice"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_expected(options, complaint):
    with pytest.raises(OptionError, match=complaint):
        LookupOptions.parse(options)


def test_everything_wrong_is_told_at_once():
    with pytest.raises(OptionError) as caught:
        LookupOptions.parse({"lookup.cache": "all", "lookup.max-retries": "many", "lookup.cash": 1})
    assert str(caught.value).count("\n- ") == 3
