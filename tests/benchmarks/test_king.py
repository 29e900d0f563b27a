"""The arithmetic and the stream of King's case study, without measuring anything."""

import random
from array import array
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from benchmarks.king import (
    BURSTS_PER_SESSION,
    EVENTS_PER_BURST,
    KEY_GROUPS,
    PROFILE,
    Counted,
    Hits,
    Job,
    Size,
    check_steady,
    column,
    is_full,
    load,
    measured,
    of_all_runs,
    profile,
    stream,
)
from benchmarks.king_report import LABELS, Sample, change, per_second, table, write_pictures
from millpond.state.rocksdb.backend import RocksDbBackend

SMALL = Size(single=20, l1=4, l2=23, users=80, sessions=12, open_bursts=5, events=60)


def _sample(at, events=0, **counters):
    return Sample(at, events, **(dict.fromkeys(Sample._fields[2:], 0) | counters))


def _job(latency, hits, gets=0, puts=0):
    return Job(None, None, SimpleNamespace(gets=gets, puts=puts), hits, None, array("d", latency))


def _written(blocking_ns, size):
    future = Future()
    future.set_result(SimpleNamespace(blocking_ns=blocking_ns, bytes=size))
    return future


def test_a_size_is_scaled_by_one_factor_and_never_to_nothing():
    assert Size().scaled(1) == Size()
    assert Size().scaled(0.5).users == 40_000
    assert set(vars(Size().scaled(1e-9)).values()) == {1}


def test_a_profile_is_a_map_of_more_than_ten_substates_and_ten_kilobytes():
    found = profile(random.Random(1))
    assert len(found) > 10
    assert len(PROFILE.codec("profile").dumps(found)) > 10_000


def test_the_stream_is_the_same_for_every_column_and_of_the_users_there_are():
    users = stream(SMALL, 2_000)
    assert users == stream(SMALL, 2_000)
    assert len(users) == 2_000
    assert set(users) <= set(range(SMALL.users))


def test_a_users_events_come_in_bursts():
    """With one burst open at a time nothing comes between, so all runs are whole bursts but the one that is cut."""
    users = stream(Size(users=10_000, sessions=50, open_bursts=1), 100 * EVENTS_PER_BURST)
    bursts = [users[at] for at in range(0, len(users), EVENTS_PER_BURST)]
    assert users == array("q", [user for user in bursts for _ in range(EVENTS_PER_BURST)])
    assert max(Counter(bursts).values()) <= BURSTS_PER_SESSION


@pytest.mark.parametrize("name", LABELS)
def test_every_column_changes_the_same_state_and_counts_what_reaches_the_backend(name, tmp_path):
    backend = RocksDbBackend(range(KEY_GROUPS), tmp_path / "db")
    backend.value_state(PROFILE)
    load(backend, SMALL)
    counted, hits = Counted(backend), Hits()
    outer, state = column(name, counted, SMALL, hits)
    job = Job(outer, state, counted, hits, None)
    for at, user in enumerate((1, 2, 1, 1)):
        job.event(user, float(at))
    assert (counted.gets, counted.puts) == (2, 0)
    outer.commit()
    outer.enter(1)
    outer.context.key = (1,)
    assert [state.get()[field] for field in ("events", "last_seen")] == [3, 3.0]
    backend.close()


def test_what_a_column_measured_becomes_means_and_shares():
    job = _job([0.004, 0.001, 0.002, 0.003], Hits(asked=10, l1=6, l2=3), gets=8, puts=2)
    job.written = [_written(2_000_000, 100), _written(4_000_000, 300)]
    job.flushed, job.blocking_cpu = [3, 5], [0.001, 0.003]
    result = measured(job, (0, 0), (0, 0))["result"]
    assert result["blocking_ms"] == [2.0, 4.0]
    assert (result["max_latency_ms"], result["median_latency_ms"]) == (4.0, 3.0)
    assert (result["gets_per_record"], result["puts_per_record"], result["puts_per_checkpoint"]) == (2.0, 0.5, 4.0)
    assert (result["checkpoint_bytes"], result["blocking_cpu_ms"], result["hit_rate"]) == (200.0, 2.0, 0.9)


def test_a_column_without_trackers_takes_its_hit_rate_from_the_caches_counters():
    job = _job([0.1], Hits())
    job.written, job.flushed, job.blocking_cpu = [_written(1, 1)], [0], [0.0]
    assert measured(job, (10, 20), (16, 28))["result"]["hit_rate"] == 0.75


def test_runs_become_medians_with_their_spread_and_all_their_checkpoints():
    runs = [
        {"max_latency_ms": latency, "hit_rate": 0.5 + latency / 100, "blocking_ms": [latency, 2 * latency]}
        for latency in (3.0, 1.0, 5.0)
    ]
    found = of_all_runs(runs)
    assert (found["max_latency_ms"], found["hit_rate"], found["checkpoints"]) == (3.0, 0.53, 6)
    assert found["blocking_ms"] == {"min": 1.0, "mean": 4.5, "max": 10.0}
    assert found["spread"] == {"max_latency_ms": [1.0, 5.0], "blocking_ms": [1.75, 7.0]}


@pytest.mark.parametrize("name", LABELS)
def test_a_column_is_full_once_every_layer_is(name, tmp_path):
    backend = RocksDbBackend(range(KEY_GROUPS), tmp_path / "db")
    backend.value_state(PROFILE)
    load(backend, SMALL)
    outer, state = column(name, Counted(backend), SMALL, Hits())
    job = Job(outer, state, None, None, None)
    entries = SMALL.single if name == "single" else SMALL.l1 + SMALL.l2
    full = []
    for user in range(entries + 1):
        full.append(is_full(outer, state, SMALL))
        job.event(user, 0.0)
    assert full == [False] * entries + [True]
    backend.close()


def test_a_column_whose_reads_become_fewer_is_not_steady():
    check_steady("steady", [_sample(0.0), _sample(1.0, 100, gets=10), _sample(2.0, 200, gets=21)])
    with pytest.raises(AssertionError, match=r"filling: 0\.5000 reads an event, then 0\.1000"):
        check_steady("filling", [_sample(0.0), _sample(1.0, 100, gets=50), _sample(2.0, 200, gets=60)])


def test_rates_are_what_a_counter_grew_by_between_two_samples():
    samples = [_sample(0.0), _sample(2.0, gets=10), _sample(4.0, gets=11)]
    assert per_second(samples, "gets") == ([2.0, 4.0], [5.0, 0.5])


def test_changes_are_given_in_per_cent_beside_the_seeds():
    assert change(40.0, 10.0) == "-75 %"
    result = {
        "max_latency_ms": 100.0,
        "p999_latency_ms": 1.0,
        "p99_latency_ms": 1.0,
        "checkpoints": 15,
        "spread": {"max_latency_ms": [90.0, 120.0]},
        "median_latency_ms": 1.0,
        "blocking_ms": {"min": 1.0, "mean": 4.0, "max": 8.0},
        "checkpoint_bytes": 1e6,
        "blocking_cpu_ms": 1.0,
        "puts_per_checkpoint": 0,
        "gets_per_record": 0.5,
        "puts_per_record": 0.5,
        "hit_rate": 0.9,
    }
    rows = table({"single": result, "two_layer": {**result, "max_latency_ms": 39.0}, "lru": result})
    assert rows[0] == ("max latency, median of the runs (ms)", "-61 %", "-61 %", "100", "39", "100")
    assert next(row for row in rows if row[0].startswith("state writes in"))[2] == ""  # from nothing there is no change


def test_there_is_a_picture_for_each_of_the_seeds(tmp_path):
    samples = [_sample(0.0), _sample(1.0, 10, gets=4, puts=3, asked=10, l1=5, l2=1)]
    found = {name: {"latency": [0.1, 0.2, 0.3], "samples": samples} for name in LABELS}
    write_pictures(found, 10.0, tmp_path / "new")
    pictures = sorted((tmp_path / "new").iterdir())
    assert [path.name for path in pictures] == [
        f"king_{name}.png" for name in ("events", "hits", "latency", "rocksdb", "state")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
