"""What every key-value store must do, run over each of them and its async face, with a plain dict as the oracle.

The numbered points are those of the contract in `millpond.kv.store`.
"""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.kv import MAX_KEY_BYTES, AsyncKVStore, Get, KVStore, Put, TimedValue, WalkableStore
from tests.kv.conftest import FACES, WHOLE_FACES, WHOLE_STORES, rows
from tests.kv.on_a_loop import OnALoop

HOUR_MS = 3_600_000


def walked(store, dataset, most):
    met, after = [], None
    while page := store.next_keys(dataset, after, most):
        assert len(page) <= most
        met += page
        after = page[-1][0]
    return met


def test_a_store_is_a_kv_store_that_may_be_walked_over(store, face):
    if isinstance(store, OnALoop):
        assert isinstance(store.store, AsyncKVStore)
    else:
        assert isinstance(store, KVStore)
        assert isinstance(store, WalkableStore) == (face in WHOLE_FACES)


def test_rows_come_back_sorted_by_time_in_the_order_of_the_gets(store):
    store.put_many("d", [Put(b"k", b"2", 2), Put(b"k", b"-1", -1), Put(b"other", b"x", 5), Put(b"k", b"0")])
    assert store.get_many([Get("d", b"other"), Get("d", b"k"), Get("d", b"other")]) == [
        [TimedValue(5, b"x")],
        [TimedValue(-1, b"-1"), TimedValue(0, b"0"), TimedValue(2, b"2")],
        [TimedValue(5, b"x")],
    ]


@given(keys=st.lists(st.binary(max_size=3), unique=True, max_size=12), most=st.integers(1, 5))
@settings(max_examples=10, deadline=None)
@pytest.mark.parametrize("kind", WHOLE_STORES)
def test_a_walk_in_pieces_meets_every_key_once_with_all_its_rows(make_store, kind, keys, most):
    store = make_store(kind)
    store.put_many("d", [Put(key, b"%d" % time_ms, time_ms) for key in keys for time_ms in (5, -5)])
    store.put_many("e", [Put(b"other", b"")])
    store.put_many("dropped", [Put(b"other", b"")])
    store.drop("dropped")
    met = walked(store, "d", most)
    assert walked(store, "dropped", most) == []
    assert sorted(key for key, _ in met) == sorted(keys)
    assert all(found == [TimedValue(-5, b"-5"), TimedValue(5, b"5")] for _, found in met)
    assert store.next_keys("unknown", None, 1) == []
    store.close()
    with pytest.raises(UnavailableError, match="closed"):
        store.next_keys("d", None, 1)


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


def test_a_key_longer_than_any_that_can_be_put_has_no_rows(store):
    too_long = b"k" * 70_000
    store.put_many("tiles", [Put(b"EWR", b"1")])
    assert store.get_many([Get("tiles", too_long), Get("tiles", b"EWR")]) == [[], [TimedValue(0, b"1")]]
    store.delete_keys("tiles", [too_long])
    assert rows(store, "tiles", b"EWR") == [(0, b"1")]


@pytest.mark.parametrize("face", WHOLE_FACES)
def test_a_store_is_closed_at_the_end_of_a_with_also_after_an_error(make_store, face):
    store = make_store(face)
    with store as entered:
        assert entered is store
        store.put_many("tiles", [Put(b"EWR", b"1")])
    with pytest.raises(UnavailableError, match="closed"):
        store.datasets()
    broken = make_store(face)
    with pytest.raises(DataError), broken:
        broken.put_many("", [])
    with pytest.raises(UnavailableError, match="closed"):
        broken.datasets()
    store.close()


def test_keys_that_begin_alike_keep_their_rows_apart(store):
    keys = [b"", b"a", b"a\x00", b"a" + b"\x80" + b"\x00" * 7, b"ab", b"b", b"\xff" * MAX_KEY_BYTES]
    keys += [b"{", b"}", b"{}", b"}{a}", b"%", b"%7D", b"a:b", b"\r\n", b"*", b"?"]
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
        lambda: store.bulk_put("d", []),
        lambda: store.create("d", rows="many"),
        lambda: store.delete_keys("d", [b"k"]),
        lambda: store.drop("d"),
        store.datasets,
    ):
        with pytest.raises(UnavailableError, match="closed"):
            act()


def test_1_the_rows_of_one_key_in_one_put_become_visible_together(face, make_store):
    writer = make_store(face)
    reader = make_store(face, like=writer) if "memory" not in face else writer
    stop, mixed, reads = threading.Event(), [], []

    def read():
        while not stop.is_set():
            tile, marker = reader.get_many([Get("d", b"k", 0, 1), Get("d", b"k", 1, 2)])
            if tile and marker and tile[0].value > marker[0].value:
                mixed.append((tile, marker))  # the tile was read first, so it is never the newer one
            both = rows(reader, "d", b"k")
            if len({value for _, value in both}) > 1:
                mixed.append(both)
            reads.append(len(both))

    thread = threading.Thread(target=read)
    thread.start()
    for version in range(200):
        value = b"%04d" % version
        writer.put_many("d", [Put(b"k", value, 0), Put(b"k", value, 1)])
    stop.set()
    thread.join(30)
    assert mixed == []
    assert set(reads) <= {0, 2}
    writer.close()


def test_2_later_puts_of_one_key_win_and_are_seen_by_every_later_read(face, make_store):
    writer = make_store(face)
    reader = make_store(face, like=writer) if "memory" not in face else writer
    for number in range(50):
        writer.put_many("d", [Put(b"k", b"%d" % number, 7)])
        assert rows(reader, "d", b"k") == [(7, b"%d" % number)]
    writer.close()


def test_3_a_whole_upload_becomes_visible_by_the_record_that_points_to_it(face, make_store):
    writer = make_store(face)
    reader = make_store(face, like=writer) if "memory" not in face else writer
    stop, torn = threading.Event(), []

    def read():
        while not stop.is_set():
            pointed = rows(reader, "info", b"d")
            if pointed:
                dataset = pointed[0][1].decode()
                found = reader.get_many([Get(dataset, b"%d" % number, 0, 1) for number in range(40)])
                torn.extend(dataset for one in found if [row.value for row in one] != [dataset.encode()])

    thread = threading.Thread(target=read)
    thread.start()
    for upload in range(8):
        dataset = f"d.{upload}"
        writer.create(dataset, rows="one")
        writer.bulk_put(dataset, [Put(b"%d" % number, dataset.encode()) for number in range(40)])
        writer.put_many("info", [Put(b"d", dataset.encode())])
    stop.set()
    thread.join(30)
    assert torn == []
    writer.close()


def test_5_one_row_per_key_is_replaced_whatever_its_time(store):
    store.create("d", rows="one")
    store.put_many("d", [Put(b"k", b"first", 5), Put(b"k", b"second", 3), Put(b"other", b"x", 1)])
    assert rows(store, "d", b"k") == [(3, b"second")]
    store.put_many("d", [Put(b"k", b"third", 9)])
    assert rows(store, "d", b"k") == [(9, b"third")]
    assert rows(store, "d", b"k", 9, 10) == [(9, b"third")]
    assert rows(store, "d", b"k", 3, 9) == []
    assert rows(store, "d", b"other") == [(1, b"x")]


def test_5_a_declared_dataset_is_listed_and_empty_and_may_be_declared_again(store):
    store.create("d", rows="one")
    store.create("d", rows="one", ttl_ms=HOUR_MS)
    assert store.datasets() == ["d"]
    assert rows(store, "d", b"k") == []
    store.drop("d")
    store.create("d", rows="many")
    store.put_many("d", [Put(b"k", b"v", time_ms) for time_ms in (1, 2)])
    assert rows(store, "d", b"k") == [(1, b"v"), (2, b"v")]


def test_5_a_dataset_cannot_be_declared_otherwise_than_it_is(store):
    store.put_many("undeclared", [Put(b"k", b"v")])
    store.create("undeclared", rows="many")
    with pytest.raises(OptionError, match="'undeclared' exists with rows='many', asked was rows='one'"):
        store.create("undeclared", rows="one")
    with pytest.raises(OptionError, match="rows is 'two'"):
        store.create("d", rows="two")
    with pytest.raises(OptionError, match="ttl_ms is 0"):
        store.create("d", rows="one", ttl_ms=0)
    assert store.datasets() == ["undeclared"]


def test_a_time_to_be_kept_until_that_is_none_is_refused(store):
    with pytest.raises(DataError, match="keep_until_ms is -1"):
        store.put_many("d", [Put(b"k", b"v", 0, -1)])


def test_6_a_drop_leaves_nothing_of_many_keys(store):
    store.put_many("d", [Put(b"%d" % number, b"v", number) for number in range(1_000)])
    store.drop("d")
    assert store.get_many([Get("d", b"%d" % number) for number in range(1_000)]) == [[]] * 1_000
    assert store.datasets() == []


def test_several_writers_load_one_dataset_at_once(store):
    store.create("d", rows="one")
    failures = []

    def load(writer):
        try:
            store.bulk_put("d", (Put(b"%d.%d" % (writer, number), b"v") for number in range(500)))
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            failures.append(error)

    writers = [threading.Thread(target=load, args=(writer,)) for writer in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert failures == []
    written = [Get("d", b"%d.%d" % (writer, number)) for writer in range(3) for number in range(500)]
    assert all(store.get_many(written))


def test_a_bulk_put_without_rows_makes_the_dataset(store):
    store.bulk_put("d", [])
    assert store.datasets() == ["d"]


@pytest.mark.parametrize("rows_of_a_key", ["one", "many"])
def test_deleted_keys_have_no_rows_and_others_keep_theirs(store, rows_of_a_key):
    store.create("d", rows=rows_of_a_key, ttl_ms=HOUR_MS)
    store.put_many("d", [Put(key, key, 1) for key in (b"", b"k", b"k\x00", b"kk", b"}")])
    store.delete_keys("d", [b"", b"k", b"}", b"missing"])
    store.delete_keys("unknown", [b"k"])
    found = {key: rows(store, "d", key) for key in (b"", b"k", b"k\x00", b"kk", b"}")}
    assert [key for key, of_key in found.items() if of_key] == [b"k\x00", b"kk"]
    store.put_many("d", [Put(b"k", b"again", 2)])
    assert rows(store, "d", b"k") == [(2, b"again")]
    assert store.datasets() == ["d"]


def test_a_get_asks_many_datasets_and_ranges_at_once(store):
    store.create("batch", rows="one")
    store.put_many("batch", [Put(b"k", b"batch", 100)])
    store.put_many("tiles", [Put(b"k", b"%d" % time_ms, time_ms) for time_ms in (-(2**50), 100, 200, 2**50)])
    asked = [Get("batch", b"k", 100, 101), Get("tiles", b"k", 150, 300), Get("tiles", b"k", 2**50), Get("none", b"k")]
    assert store.get_many(asked) == [
        [TimedValue(100, b"batch")],
        [TimedValue(200, b"200")],
        [TimedValue(2**50, b"%d" % 2**50)],
        [],
    ]
    assert store.get_many([Get("tiles", b"k", 100, 101)]) == [[TimedValue(100, b"100")]]
    assert store.get_many([Get("batch", b"k")]) == [[TimedValue(100, b"batch")]]


DATASETS = st.sampled_from(["a", "b", "route.stream"])
KEYS = st.sampled_from([b"", b"k", b"k\x00", b"kk", b"\xff\xff"])
TIMES = st.one_of(st.integers(-3, 3), st.integers(1 - (1 << 53), (1 << 53) - 1))
PUTS = st.builds(Put, KEYS, st.binary(max_size=4), TIMES)
STEPS = st.one_of(
    st.tuples(st.just("put"), DATASETS, st.lists(PUTS, max_size=4)),
    st.tuples(st.just("bulk"), DATASETS, st.lists(PUTS, max_size=4)),
    st.tuples(st.just("delete"), DATASETS, st.lists(KEYS, max_size=2)),
    st.tuples(st.just("drop"), DATASETS, st.none()),
)
BOUNDS = st.none() | TIMES


@pytest.mark.parametrize("kind", FACES)
@given(steps=st.lists(STEPS, max_size=12), gets=st.lists(st.builds(Get, DATASETS, KEYS, BOUNDS, BOUNDS), max_size=8))
@settings(max_examples=20, deadline=None)
def test_any_history_reads_like_a_plain_dict(make_store, kind, steps, gets):
    model: dict[str, dict[tuple[bytes, int], bytes]] = {}
    store = make_store(kind)
    try:
        for action, dataset, given in steps:
            known = model.get(dataset, {})
            if action in ("put", "bulk"):
                (store.put_many if action == "put" else store.bulk_put)(dataset, given)
                model.setdefault(dataset, {}).update({(put.key, put.time_ms): put.value for put in given})
            elif action == "delete":
                store.delete_keys(dataset, given)
                for address in [address for address in known if address[0] in given]:
                    del known[address]
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
