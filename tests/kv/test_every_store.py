"""What every key-value store must do, run over each of them, with a plain dict as the oracle."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, UnavailableError
from millpond.kv import MAX_KEY_BYTES, Get, KVStore, LmdbStore, MemoryStore, Put, TimedValue

STORES = ["memory", "lmdb"]


def make_store(kind: str, folder: Path) -> KVStore:
    return MemoryStore() if kind == "memory" else LmdbStore(folder / "kv", map_bytes=1 << 20, sync=False)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KVStore]:
    store = make_store(request.param, tmp_path)
    yield store
    store.close()


def rows(store: KVStore, dataset: str, key: bytes, start_ms: int | None = None, end_ms: int | None = None):
    return [(row.time_ms, row.value) for row in store.get_many([Get(dataset, key, start_ms, end_ms)])[0]]


def test_a_store_is_a_kv_store(store):
    assert isinstance(store, KVStore)


def test_rows_come_back_sorted_by_time_in_the_order_of_the_gets(store):
    store.put_many("d", [Put(b"k", b"2", 2), Put(b"k", b"-1", -1), Put(b"other", b"x", 5), Put(b"k", b"0")])
    assert store.get_many([Get("d", b"other"), Get("d", b"k"), Get("d", b"other")]) == [
        [TimedValue(5, b"x")],
        [TimedValue(-1, b"-1"), TimedValue(0, b"0"), TimedValue(2, b"2")],
        [TimedValue(5, b"x")],
    ]


@given(keys=st.lists(st.binary(max_size=3), unique=True, max_size=12), most=st.integers(1, 5))
@settings(deadline=None)
@pytest.mark.parametrize("kind", STORES)
def test_a_walk_in_pieces_meets_every_key_once_with_all_its_rows(kind, keys, most):
    with TemporaryDirectory() as folder:
        store = make_store(kind, Path(folder))
        store.put_many("d", [Put(key, b"%d" % time_ms, time_ms) for key in keys for time_ms in (5, -5)])
        store.put_many("e", [Put(b"other", b"")])
        met, after = [], None
        while page := store.next_keys("d", after, most):
            assert len(page) <= most
            met += page
            after = page[-1][0]
        assert sorted(key for key, _ in met) == sorted(keys)
        assert all(found == [TimedValue(-5, b"-5"), TimedValue(5, b"5")] for _, found in met)
        assert store.next_keys("unknown", None, 1) == []
        store.close()


def test_a_range_is_half_open(store):
    store.put_many("d", [Put(b"k", b"%d" % time_ms, time_ms) for time_ms in range(5)])
    assert [time_ms for time_ms, _ in rows(store, "d", b"k", 1, 3)] == [1, 2]
    assert [time_ms for time_ms, _ in rows(store, "d", b"k", None, 2)] == [0, 1]
    assert [time_ms for time_ms, _ in rows(store, "d", b"k", 3, None)] == [3, 4]
    assert rows(store, "d", b"k", 3, 3) == []
    assert rows(store, "d", b"k", 4, 1) == []


def test_the_same_key_and_time_overwrites_and_the_last_of_one_call_wins(store):
    store.put_many("d", [Put(b"k", b"old", 1)])
    store.put_many("d", [Put(b"k", b"newer", 1), Put(b"k", b"newest", 1)])
    assert rows(store, "d", b"k") == [(1, b"newest")]


def test_an_unknown_dataset_or_key_has_no_rows(store):
    store.put_many("d", [Put(b"k", b"v")])
    assert store.get_many([Get("nowhere", b"k"), Get("d", b"nobody")]) == [[], []]
    assert store.get_many([]) == []


def test_keys_that_begin_alike_keep_their_rows_apart(store):
    keys = [b"", b"a", b"a\x00", b"a" + b"\x80" + b"\x00" * 7, b"ab", b"b", b"\xff" * MAX_KEY_BYTES]
    store.put_many("d", [Put(key, key, time_ms) for key in keys for time_ms in (0, 1)])
    assert [rows(store, "d", key) for key in keys] == [[(0, key), (1, key)] for key in keys]


def test_datasets_do_not_see_each_other_and_are_listed_sorted(store):
    store.put_many("b", [Put(b"k", b"in b")])
    store.put_many("a", [Put(b"k", b"in a")])
    store.put_many("ä", [])
    assert store.datasets() == ["a", "b", "ä"]
    assert rows(store, "a", b"k") == [(0, b"in a")]


def test_a_dropped_dataset_is_gone_and_starts_empty_when_written_again(store):
    store.put_many("d", [Put(b"k", b"v", time_ms) for time_ms in range(10)])
    store.put_many("kept", [Put(b"k", b"v")])
    store.drop("d")
    store.drop("d")
    assert store.datasets() == ["kept"]
    assert rows(store, "d", b"k") == []
    store.put_many("d", [Put(b"k", b"new", 3)])
    assert rows(store, "d", b"k") == [(3, b"new")]
    assert rows(store, "kept", b"k") == [(0, b"v")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Put(b"k" * (MAX_KEY_BYTES + 1), b""), "key of 481 bytes .* over the limit of 480"),
        (Put(b"k", b"", 1 << 53), "time_ms 9007199254740992 does not fit"),
        (Put("k", b""), "key and value are bytes, got str and bytes"),
    ],
)
def test_a_row_beyond_the_limits_is_refused_and_nothing_of_its_call_is_written(store, bad, message):
    with pytest.raises(DataError, match=f"dataset 'd'.*{message}"):
        store.put_many("d", [Put(b"good", b"v"), bad])
    assert rows(store, "d", b"good") == []


def test_a_failing_source_of_rows_writes_nothing(store):
    def puts():
        yield Put(b"k", b"v")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        store.put_many("d", puts())
    assert store.datasets() == []


@pytest.mark.parametrize("name", ["", "x" * 481])
def test_a_dataset_name_beyond_the_limits_is_refused(store, name):
    with pytest.raises(DataError, match="dataset name"):
        store.put_many(name, [])


def test_a_bound_that_is_no_time_is_refused(store):
    store.put_many("d", [Put(b"k", b"v")])
    with pytest.raises(DataError, match="does not fit 53 bits"):
        store.get_many([Get("d", b"k", 0, (1 << 53) + 1)])


def test_a_closed_store_says_so_and_closing_twice_is_no_error(store):
    store.put_many("d", [Put(b"k", b"v")])
    store.close()
    store.close()
    for act in (
        lambda: store.get_many([Get("d", b"k")]),
        lambda: store.put_many("d", []),
        lambda: store.drop("d"),
        store.datasets,
    ):
        with pytest.raises(UnavailableError, match="closed"):
            act()


DATASETS = st.sampled_from(["a", "b", "route.stream"])
KEYS = st.sampled_from([b"", b"k", b"k\x00", b"kk", b"\xff\xff"])
TIMES = st.one_of(st.integers(-3, 3), st.integers(1 - (1 << 53), (1 << 53) - 1))
PUTS = st.builds(Put, KEYS, st.binary(max_size=4), TIMES)
STEPS = st.one_of(
    st.tuples(st.just("put"), DATASETS, st.lists(PUTS, max_size=4)),
    st.tuples(st.just("drop"), DATASETS, st.none()),
)
BOUNDS = st.none() | TIMES


@pytest.mark.parametrize("kind", STORES)
@given(steps=st.lists(STEPS, max_size=12), gets=st.lists(st.builds(Get, DATASETS, KEYS, BOUNDS, BOUNDS), max_size=8))
@settings(max_examples=60, deadline=None)
def test_any_history_reads_like_a_plain_dict(kind, steps, gets):
    model: dict[str, dict[tuple[bytes, int], bytes]] = {}
    with TemporaryDirectory() as folder:
        store = make_store(kind, Path(folder))
        try:
            for action, dataset, puts in steps:
                if action == "put":
                    store.put_many(dataset, puts)
                    model.setdefault(dataset, {}).update({(put.key, put.time_ms): put.value for put in puts})
                else:
                    store.drop(dataset)
                    model.pop(dataset, None)
            assert store.datasets() == sorted(model)
            assert store.get_many(gets) == [
                [
                    TimedValue(time_ms, value)
                    for (key, time_ms), value in sorted(model.get(get.dataset, {}).items())
                    if key == get.key
                    and (get.start_ms is None or time_ms >= get.start_ms)
                    and (get.end_ms is None or time_ms < get.end_ms)
                ]
                for get in gets
            ]
        finally:
            store.close()
