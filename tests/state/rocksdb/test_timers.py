"""What is RocksDB's own about timers: they are read in the order of time from the database, one by one.

What is due, and in what order, is tested against a plain set in `tests/state/operator/test_timers.py`.
"""

from itertools import islice

import pyarrow as pa
import pytest

from millpond.state.checkpoint import Shard, new_manifest
from millpond.state.rocksdb import timers as rocksdb_timers
from millpond.state.rocksdb.backend import RocksDbBackend

KEY = pa.schema([("user", pa.int64())])
GROUPS = range(4)
COUNT = 3_000


@pytest.fixture
def shard(tmp_path):
    backend = RocksDbBackend(GROUPS, tmp_path / "state", write_buffer_bytes=1 << 16)
    shard = Shard(new_manifest("lineage", 0, 1, len(GROUPS), KEY), backend)
    assert shard.begin_at(shard.manifest)
    yield shard
    backend.close()


@pytest.fixture
def read(monkeypatch):
    """The timers that were made of rows."""
    made, make = [], rocksdb_timers._timer

    def counted(*row):
        made.append(make(*row))
        return made[-1]

    monkeypatch.setattr(rocksdb_timers, "_timer", counted)
    return made


def at(shard, user):
    shard.backend.enter(user % len(GROUPS))
    shard.backend.context.key = (user,)


def set_timers(shard):
    timers = shard.timers
    for user in range(COUNT):
        at(shard, user)
        # Each time comes from all key groups, and not in its order.
        timers.register(-user % 100)
    return timers


def test_memory_holds_no_timer_and_those_due_are_read_one_by_one(shard, read):
    timers = set_timers(shard)
    shard.commit("attempt")
    assert shard.begin_at(shard.manifest)
    due = timers.due(99)
    assert [timer.expiry_ms for timer in islice(due, 3)] == [0, 0, 0]
    assert len(timers._queue) == 0
    assert len(read) == 3
    assert len(list(due)) == COUNT - 3


def test_timers_of_one_time_are_due_in_the_order_in_which_they_were_set_also_after_a_rollback(shard):
    timers = set_timers(shard)
    shard.commit("attempt")
    assert shard.begin_at(shard.manifest)
    for user in range(0, COUNT, 7):
        at(shard, user)
        timers.delete(-user % 100)
        timers.register(-user % 100)
    shard.rollback()
    expected = sorted(range(COUNT), key=lambda user: (-user % 100, user))
    assert [timer.key for timer in timers.due(99)] == [(user,) for user in expected]


def test_the_next_timer_is_found_without_passing_over_those_that_fired(shard, monkeypatch):
    timers = set_timers(shard)
    for due in timers.due(49):
        at(shard, *due.key)
        timers.delete(due.expiry_ms)
    sought, between = [], shard.backend._database.between

    def noted(first, end):
        sought.append(first)
        return between(first, end)

    monkeypatch.setattr(shard.backend._database, "between", noted)
    assert timers.next_expiry_ms() == 50
    assert timers.next_expiry_ms() == 50
    assert sought[0] < sought[1], "the second search begins where the first one ended"
    at(shard, 7)
    timers.register(-1)
    assert timers.next_expiry_ms() == -1


def test_a_timer_that_is_set_and_deleted_again_and_again_leaves_no_row(shard):
    timers = shard.timers
    at(shard, 1)
    for _ in range(3):
        for at_ms in range(50):
            timers.register(at_ms)
        for at_ms in range(50):
            timers.delete(at_ms)
    assert list(shard.backend._database.handle.keys()) == []


def test_a_backend_that_is_closed_while_those_due_are_gone_through_leaves_no_file(shard, tmp_path):
    due = iter(set_timers(shard).due(99))
    next(due)
    shard.backend.close()
    assert not (tmp_path / "state").exists()
