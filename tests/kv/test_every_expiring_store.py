"""How long every key-value store and its async face keep rows that expire: point 5 of the contract."""

import pytest

from millpond.kv import Put
from tests.kv.conftest import WHOLE_FACES, WHOLE_STORES, rows

HOUR_MS = 3_600_000


class Clock:
    """A wall clock that stands still until it is moved."""

    def __init__(self):
        self.now_ms = 1_700_000_000_000

    def __call__(self):
        return self.now_ms


@pytest.mark.parametrize("rows_of_a_key", ["one", "many"])
def test_5_a_row_stays_as_long_as_declared_after_it_was_last_written(face, make_store, rows_of_a_key):
    clock = Clock()
    store = make_store(face, clock=clock)
    store.create("d", rows=rows_of_a_key, ttl_ms=HOUR_MS)
    store.put_many("d", [Put(b"k", b"old", 7)])
    clock.now_ms += HOUR_MS - 1
    store.put_many("d", [Put(b"k", b"new", 7)])
    clock.now_ms += HOUR_MS - 1
    store.put_many("d", [Put(b"%d" % number, b"", 0) for number in range(10)])
    assert rows(store, "d", b"k") == [(7, b"new")]
    store.close()


@pytest.mark.parametrize("rows_of_a_key", ["one", "many"])
def test_5_a_row_that_names_its_own_time_stays_until_then_and_never_less_than_the_ttl(face, make_store, rows_of_a_key):
    clock = Clock()
    store = make_store(face, clock=clock)
    store.create("d", rows=rows_of_a_key, ttl_ms=HOUR_MS)
    future_ms, past_ms = clock.now_ms + 5 * HOUR_MS, clock.now_ms - 5 * HOUR_MS
    store.put_many("d", [Put(b"future", b"", 1, future_ms), Put(b"past", b"", 2, past_ms)])

    def look():
        # Rows go when others are written.
        store.put_many("d", [Put(b"other", b"", number) for number in range(20)])
        return [rows(store, "d", key) != [] for key in (b"future", b"past")]

    clock.now_ms += HOUR_MS - 1
    assert look() == [True, True]
    clock.now_ms = future_ms - 1
    assert look()[0]
    store.close()


@pytest.mark.parametrize("kind", WHOLE_STORES)
def test_5_a_replay_of_old_tiles_is_kept_no_longer_than_the_ttl(make_store, kind):
    clock = Clock()
    store = make_store(kind, clock=clock)
    store.create("d", rows="many", ttl_ms=HOUR_MS)
    start_ms = clock.now_ms - 100 * HOUR_MS
    for number in range(100):
        put = Put(b"k", b"%d" % number, number, start_ms + number * HOUR_MS + 3 * HOUR_MS)
        store.put_many("d", [put])
    clock.now_ms += HOUR_MS
    for number in range(100, 160):
        store.put_many("d", [Put(b"k", b"%d" % number, number, clock.now_ms + HOUR_MS)])
    found = [time_ms for time_ms, _ in rows(store, "d", b"k")]
    # Some stores look at a few rows with each write, so a few that are due may be left.
    assert len([time_ms for time_ms in found if time_ms < 100]) <= 10
    assert [time_ms for time_ms in found if time_ms >= 100] == list(range(100, 160))
    store.close()


@pytest.mark.parametrize("kind", WHOLE_FACES)
def test_5_tiles_that_expire_do_not_grow_for_ever(kind, make_store):
    clock = Clock()
    store = make_store(kind, clock=clock)
    store.create("d", rows="many", ttl_ms=HOUR_MS)
    for number in range(200):
        clock.now_ms += HOUR_MS // 10
        store.put_many("d", [Put(b"k", b"%d" % number, number)])
    found = rows(store, "d", b"k")
    assert found[-10:] == [(number, b"%d" % number) for number in range(190, 200)]
    assert len(found) <= 40
    store.close()


def test_5_rows_written_before_a_dataset_could_expire_stay(face, make_store):
    clock = Clock()
    store = make_store(face, clock=clock)
    store.put_many("d", [Put(b"k", b"for ever", 0)])
    store.create("d", rows="many", ttl_ms=1)
    store.put_many("d", [Put(b"k", b"for a time", 1)])
    store.create("d", rows="many")
    store.put_many("d", [Put(b"k", b"for ever now", 1)])
    clock.now_ms += HOUR_MS
    store.create("d", rows="many", ttl_ms=HOUR_MS)
    for number in range(50):
        store.put_many("d", [Put(b"other", b"", number)])
    assert rows(store, "d", b"k") == [(0, b"for ever"), (1, b"for ever now")]
    store.close()
