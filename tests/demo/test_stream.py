"""The sink holds each micro-batch once, with what was measured of it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.demo import stream
from millpond.demo.replay import EVENTS
from millpond.demo.report import CacheCount, Measure
from millpond.demo.stream import AircraftSink, events_per_slice, written, written_measures
from millpond.errors import CorruptionError, DataError, UnavailableError


def events(rows: int) -> pa.Table:
    return pa.table({field.name: pa.nulls(rows, field.type) for field in EVENTS})


class FakeBatch:
    def __init__(self, *flights: int) -> None:
        self.flights = flights

    def toArrow(self) -> pa.Table:
        return pa.table({"flight_id": list(self.flights)})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.5
        return self.now


def sink_into(folder: Path, counts: list[int], steps: list[Measure]) -> AircraftSink:
    asked = iter(counts)
    return AircraftSink(folder, [10, 20, 30], lambda: {"planes": CacheCount(next(asked), 1)}, Clock(), steps.append)


def test_every_batch_is_one_file_with_its_own_measure(tmp_path: Path) -> None:
    steps: list[Measure] = []
    sink = sink_into(tmp_path, [5, 9], steps)
    sink(FakeBatch(1, 2), 0)
    sink(FakeBatch(3), 1)
    assert written(tmp_path) == {"batches": 2, "rows": 3}
    expected = [
        Measure("stream", 1.5, 10, {"planes": CacheCount(5, 1)}),
        Measure("stream", 1.5, 20, {"planes": CacheCount(4, 0)}),
    ]
    assert steps == written_measures(tmp_path) == expected


def test_a_batch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    sink_into(tmp_path, [5], [])(FakeBatch(1, 2), 0)
    before = (tmp_path / "batch-000000.parquet").read_bytes()
    sink_into(tmp_path, [7], [])(FakeBatch(2, 1), 0)
    assert (tmp_path / "batch-000000.parquet").read_bytes() == before


def test_a_flight_that_came_out_twice_is_found(tmp_path: Path) -> None:
    sink = sink_into(tmp_path, [1, 2], [])
    sink(FakeBatch(1, 2), 0)
    sink(FakeBatch(2), 1)
    with pytest.raises(CorruptionError, match="1 flights came out twice"):
        written(tmp_path)


def test_a_refusal_of_the_disk_is_kept_for_the_one_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_table: pa.Table, hidden: Path) -> None:
        raise OSError(28, "No space left on device", str(hidden))

    monkeypatch.setattr(stream.pq, "write_table", full)
    sink = sink_into(tmp_path, [1], [])
    with pytest.raises(UnavailableError, match="disk is full"):
        sink(FakeBatch(1), 0)
    assert isinstance(sink.failure, UnavailableError)
    assert list(tmp_path.iterdir()) == []


def test_slices_are_counted_in_the_order_of_the_stream(tmp_path: Path) -> None:
    for number, rows in ((1, 5), (0, 7)):
        pq.write_table(events(rows), tmp_path / f"slice-{number:05d}.parquet")
    assert events_per_slice(tmp_path) == [7, 5]


def test_a_slice_that_was_cut_off_is_named(tmp_path: Path) -> None:
    path = tmp_path / "slice-00000.parquet"
    pq.write_table(events(5), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptionError, match=r"slice-00000\.parquet"):
        events_per_slice(tmp_path)


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (events(5).drop_columns(["carrier"]), "no such column"),
        (events(5).set_column(5, "carrier", [[1.5] * 5]), "double"),
    ],
)
def test_a_slice_with_a_missing_column_or_a_wrong_type_is_named(tmp_path: Path, changed: pa.Table, found: str) -> None:
    pq.write_table(changed, tmp_path / "slice-00000.parquet")
    with pytest.raises(DataError, match=f"slice-00000.*'carrier' of type string, found {found}"):
        events_per_slice(tmp_path)
