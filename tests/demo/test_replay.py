"""The stream is the same on every run, roughly in order, and each file of it is whole."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.demo.data import DAY_MS, FLIGHTS, HOUR_MS, MINUTE_MS
from millpond.demo.replay import EVENTS, choose, default_batch_end_ms, out_of_order, receive, write_slices
from millpond.errors import OptionError, UnavailableError


def some_flights(count: int, *, minutes_apart: int = 1) -> pa.Table:
    base = {field.name: pa.nulls(count, field.type) for field in FLIGHTS}
    text = pa.array(["x"] * count)
    whole = pa.array(np.zeros(count, dtype=np.int64))
    filled = {field.name: text if field.type == pa.string() else whole for field in FLIGHTS if not field.nullable}
    times = pa.array(15_706 * DAY_MS + np.arange(count) * minutes_apart * MINUTE_MS)
    ids = pa.array(np.arange(count)[::-1])
    return pa.table(base | filled | {"flight_id": ids, "time_ms": times}, schema=FLIGHTS)


def test_the_first_events_are_those_that_happened_first() -> None:
    flights = some_flights(50)
    chosen = choose(flights.take(np.random.default_rng(1).permutation(50)), events=20)
    assert chosen["time_ms"].to_pylist() == flights["time_ms"].to_pylist()[:20]


def test_until_is_half_open_and_combines_with_a_number() -> None:
    flights = some_flights(50)
    limit = flights["time_ms"][10].as_py()
    assert choose(flights, until_ms=limit).num_rows == 10
    assert choose(flights, until_ms=limit, events=4).num_rows == 4
    with pytest.raises(OptionError, match="--until"):
        choose(flights, until_ms=0)


def test_the_stream_has_every_flight_once_in_the_order_it_was_received() -> None:
    flights = some_flights(500)
    stream = receive(flights)
    assert stream.schema == EVENTS
    assert sorted(stream["flight_id"].to_pylist()) == sorted(flights["flight_id"].to_pylist())
    received = stream["received_ms"].to_numpy()
    assert (np.diff(received) >= 0).all()
    assert (received >= stream["time_ms"].to_numpy()).all()


def test_a_shorter_run_draws_the_same_lag_for_the_same_flight() -> None:
    flights = some_flights(500)
    lag_of = {row["flight_id"]: row["received_ms"] for row in receive(flights).to_pylist()}
    for row in receive(choose(flights, events=100)).to_pylist():
        assert row["received_ms"] == lag_of[row["flight_id"]]


def test_most_records_are_prompt_some_minutes_late_and_a_few_hours_late() -> None:
    stream = receive(some_flights(20_000))
    lag = stream["received_ms"].to_numpy() - stream["time_ms"].to_numpy()
    assert 0.88 < (lag <= MINUTE_MS).mean() < 0.92
    assert 0.01 < (lag > 30 * MINUTE_MS).mean() < 0.02
    assert HOUR_MS < lag.max() <= 6 * HOUR_MS
    assert out_of_order(stream) > 0


def test_slices_hold_the_stream_in_order_and_are_dated_in_order(tmp_path: Path) -> None:
    stream = receive(some_flights(101))
    assert write_slices(stream, tmp_path, slices=7) == 7
    files = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in files] == [f"slice-{n:05d}.parquet" for n in range(7)]
    assert pa.concat_tables([pq.read_table(path) for path in files]) == stream


def test_writing_again_adds_what_is_missing_and_leaves_the_rest(tmp_path: Path) -> None:
    stream = receive(some_flights(40))
    write_slices(stream, tmp_path, slices=4)
    kept = (tmp_path / "slice-00001.parquet").stat().st_ino
    (tmp_path / "slice-00002.parquet").unlink()
    (tmp_path / ".slice-00002.parquet.99").write_bytes(b"torn")
    write_slices(stream, tmp_path, slices=4)
    assert (tmp_path / "slice-00001.parquet").stat().st_ino == kept
    assert pq.read_table(tmp_path / "slice-00002.parquet") == stream.slice(20, 10)


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_table: pa.Table, hidden: Path) -> None:
        hidden.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(hidden))

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(UnavailableError, match="disk is full"):
        write_slices(receive(some_flights(10)), tmp_path, slices=2)
    assert list(tmp_path.iterdir()) == []


def test_the_batch_ends_two_days_before_the_last_event_but_not_before_the_first_day() -> None:
    whole = some_flights(10, minutes_apart=24 * 60)
    assert default_batch_end_ms(whole) == (15_706 + 7) * DAY_MS
    assert default_batch_end_ms(some_flights(10)) == 15_706 * DAY_MS
