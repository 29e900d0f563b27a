"""The options of the heap that spills."""

from pathlib import Path

import pytest

from millpond.errors import OptionError
from millpond.state.options.operator import StateOptions
from millpond.state.spillable import SpillableSettings

P = "state.backend.spillable."


def parse(**options):
    named = {P + name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    return StateOptions.parse({"state.backend.type": "spillable", **named}).settings


def test_the_defaults_are_the_preview_release_s():
    settings = parse()
    assert settings == SpillableSettings()
    assert (settings.chunk_bytes, settings.check_interval_ms, settings.gc_time_threshold_ms) == (
        512 << 20,
        60_000,
        2_000,
    )
    ratios = (
        settings.high_watermark_ratio,
        settings.spill_size_ratio,
        settings.load_start_ratio,
        settings.load_end_ratio,
    )
    assert ratios == (0.5, 0.2, 0.1, 0.3)
    assert (settings.trigger_interval_ms, settings.cancel_checkpoint) == (60_000, True)


def test_every_option_is_read_with_its_unit():
    settings = StateOptions.parse(
        {
            "state.backend.type": "Spillable",
            P + "memory-limit": "2gb",
            P + "paths": "/data/a, /data/b",
            P + "chunk-size": "64mb",
            P + "heap-status.check-interval": "10 s",
            P + "gc-time.threshold": "500 ms",
            P + "high-watermark.ratio": "0.7",
            P + "spill-size.ratio": "0.25",
            P + "load-start.ratio": "0.2",
            P + "load-end.ratio": "0.4",
            P + "trigger-interval": "2 min",
            P + "cancel.checkpoint": "false",
            P + "spill-rate": "20mb",
        }
    ).settings
    assert settings == SpillableSettings(
        memory_limit_bytes=2 << 30,
        paths=(Path("/data/a"), Path("/data/b")),
        chunk_bytes=64 << 20,
        check_interval_ms=10_000,
        gc_time_threshold_ms=500,
        high_watermark_ratio=0.7,
        spill_size_ratio=0.25,
        load_start_ratio=0.2,
        load_end_ratio=0.4,
        trigger_interval_ms=120_000,
        cancel_checkpoint=False,
        spill_bytes_per_second=20 << 20,
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("chunk-size", "10", "from 1,048,576"),
        ("chunk-size", "many", "a size such as '64mb'"),
        ("heap-status.check-interval", "soon", "a duration such as"),
        ("gc-time.threshold", "0", "at least 1 ms"),
        ("high-watermark.ratio", "1.5", "above 0 and below 1"),
        ("spill-size.ratio", "0", "above 0 and below 1"),
        ("load-start.ratio", "-0.1", "above 0 and below 1"),
        ("load-end.ratio", "a third", "above 0 and below 1"),
        ("cancel.checkpoint", "perhaps", "true or false"),
        ("memory-limit", "0", "from 1,048,576"),
        ("spill-rate", "5", "from 1,048,576"),
        ("paths", " ", "a path"),
        ("paths", "/data/a,,/data/b", "a path"),
        ("chunk-size", "2tb", "1,099,511,627,776"),
        ("heap-status.check-interval", "0", "at least 1 ms"),
        ("heap-status.check-interval", "1 fortnight", "a duration such as"),
        ("gc-time.threshold", "-1 s", "a duration such as"),
        ("trigger-interval", "0 min", "at least 1 ms"),
        ("trigger-interval", "often", "a duration such as"),
        ("spill-size.ratio", "1", "above 0 and below 1"),
        ("high-watermark.ratio", "nan", "above 0 and below 1"),
        ("load-end.ratio", "true", "above 0 and below 1"),
        ("cancel.checkpoint", "1", "true or false"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value, expected):
    with pytest.raises(OptionError, match=name) as refused:
        StateOptions.parse({"state.backend.type": "spillable", P + name: value})
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    "ratios", [{"load_start__ratio": "0.3"}, {"load_end__ratio": "0.6"}, {"high_watermark__ratio": "0.2"}]
)
def test_ratios_out_of_order_are_refused(ratios):
    with pytest.raises(OptionError, match=r"load-start.ratio < load-end.ratio < high-watermark.ratio"):
        parse(**ratios)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("high_watermark_ratio", 1.5),
        ("spill_size_ratio", 0),
        ("spill_size_ratio", 1),
        ("load_start_ratio", 0),
        ("chunk_bytes", 0),
        ("check_interval_ms", 0),
        ("gc_time_threshold_ms", -1),
        ("trigger_interval_ms", 0),
        ("spill_bytes_per_second", 0),
    ],
)
def test_settings_out_of_range_are_refused_without_strings_too(field, value):
    with pytest.raises(ValueError, match=field):
        SpillableSettings(**{field: value})


def test_an_unknown_option_is_refused_with_the_nearest_one():
    with pytest.raises(OptionError, match=r"did you mean 'state\.backend\.spillable\.spill-size\.ratio'"):
        StateOptions.parse({"state.backend.type": "spillable", P + "spill-sizes.ratio": "0.2"})


def test_its_options_have_no_effect_on_another_backend_and_are_refused_there():
    with pytest.raises(OptionError, match=r"has no effect with state\.backend\.type = heap"):
        StateOptions.parse({P + "trigger-interval": "2 min"})
