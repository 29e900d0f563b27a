"""A column cache that is recorded answers as before, and its curve is that of the cache at every size."""

import random

import numpy as np
import pyarrow as pa
import pytest

from millpond.cache import Bounds
from millpond.cache.curves.registry import recordings, report_on
from millpond.errors import OptionError
from millpond.lookup import LookupTable, PythonLookup

OPTIONS = {"lookup.cache": "PARTIAL", "lookup.partial-cache.hit-rate-curve": True}
NUMBER, SQUARE = pa.schema([("number", pa.int64())]), pa.schema([("square", pa.int64())])


def opened(**limits):
    options = OPTIONS | {f"lookup.partial-cache.{name.replace('_', '-')}": limit for name, limit in limits.items()}
    return LookupTable("squares", PythonLookup(lambda n: [(n * n,)], NUMBER, SQUARE), options).open_in_columns()


def batches(seed=4):
    draw = random.Random(seed)
    return [draw.sample(range(400), 30) for _ in range(300)]


def ask(lookup):
    for numbers in batches():
        found = lookup.match([pa.array(numbers)]).rows
        assert found.rows.column(0).to_numpy()[found.starts].tolist() == [number * number for number in numbers]


def test_the_curve_is_the_hit_rate_of_caches_of_every_size():
    recorded = opened(max_rows=100)
    ask(recorded)
    report = report_on("squares", recorded.recording)
    assert (report.requests, report.max_entries, report.entries) == (9_000, 100, 100)
    assert report.hit_rate == pytest.approx(recorded.stats().hit_rate)
    for size in (60, 100, 250):
        other = opened(max_rows=size)
        ask(other)
        # The curve is for one key after the other. A batch is looked up whole before any of it is put.
        assert report.curves["lru"].at_entries(size) == pytest.approx(other.stats().hit_rate, abs=0.05)


def test_a_cache_that_is_bounded_in_bytes_has_a_curve_in_bytes():
    recorded = opened(max_bytes="20kb")
    ask(recorded)
    report = report_on("squares", recorded.recording)
    assert report.max_bytes is not None
    assert 0 < report.present < 400
    assert report.curve.points[-1].bytes > report.curve.points[0].bytes > 0


def test_it_keeps_its_size_and_no_budget_of_the_process_has_it():
    recorded = opened(max_rows=100)
    assert recorded.recording not in recordings().values()
    with pytest.raises(OptionError, match="max-rows"):
        recorded.recording.cache.resize(Bounds(10))


def test_hashes_that_are_told_count_as_keys_do():
    told, hashed = opened(max_rows=100).recording, opened(max_rows=100).recording
    keys = [number % 37 for number in range(500)]
    told.asked_many(keys)
    hashed.asked_hashes(np.array([hash((key,)) for key in keys]))
    assert hashed.requests == told.requests == 500
    assert hashed.curve("lru") == told.curve("lru")


def test_a_cache_that_is_not_recorded_has_no_recording():
    table = LookupTable(
        "squares",
        PythonLookup(lambda n: [(n * n,)], NUMBER, SQUARE),
        {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 9},
    )
    assert table.open_in_columns().recording is None
    assert table.open().recording is None
