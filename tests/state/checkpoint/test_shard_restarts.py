"""A shard that begins with state of another form than its segments have, or with a savepoint of another layout."""

import pyarrow as pa
import pytest

from millpond.errors import CorruptionError, OptionError
from millpond.state.checkpoint import Savepoint, Shard, ShardState, new_manifest, write_savepoint
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.types.key_groups import key_group_of, key_groups_of, max_parallelism, shard_of
from millpond.state.types.timer_states import TIMERS
from millpond.state.types.ttl import Ttl
from tests.state.checkpoint.faulty_files import Disk, FaultyFiles

KEY = pa.schema([("user", pa.string())])
OLD = [
    StateDescriptor("count", StateKind.VALUE, pa.schema([("n", pa.int32()), ("gone", pa.string())])),
    StateDescriptor("log", StateKind.LIST, pa.schema([("at", pa.int32())])),
    StateDescriptor("pages", StateKind.MAP, pa.schema([("n", pa.int32())]), pa.schema([("page", pa.string())])),
    TIMERS,
]
NEW = [
    StateDescriptor("count", StateKind.VALUE, pa.schema([("last", pa.string()), ("n", pa.int64())])),
    StateDescriptor("pages", StateKind.MAP, pa.schema([("n", pa.float64())]), pa.schema([("page", pa.string())])),
    StateDescriptor("added", StateKind.VALUE, pa.schema([("n", pa.int64())])),
    TIMERS,
]
USERS = [f"user {number}" for number in range(60)]


class Store:
    """What Spark's state store is to a shard."""

    def __init__(self, manifest):
        self.manifest, self.segments = manifest, {}

    def put(self, commit):
        assert commit.parent == self.manifest
        self.segments = {
            at: data for at, data in {**self.segments, **commit.segments}.items() if at not in commit.dropped
        }
        self.manifest = commit.manifest
        assert sorted(self.segments) == sorted(ref.id for ref in self.manifest.segments)

    def restored(self, declared=()):
        shard = Shard(self.manifest, HeapBackend(self.manifest.key_groups))
        shard.restore(self.segments, declared)
        assert shard.begin_at(self.manifest)
        return shard


def handles(shard, states):
    for state in states:
        shard.declare(state)
    make = {"value": shard.backend.value_state, "list": shard.backend.list_state, "map": shard.backend.map_state}
    return {state.name: make[state.kind](state) for state in states}


def set_current_key(shard, user):
    shard.backend.enter(key_group_of((user,), [pa.string()], shard.manifest.max_parallelism))
    shard.backend.context.key = (user,)


def filled(shard, users=USERS):
    state = handles(shard, OLD)
    for number, user in enumerate(USERS):
        if user in users:
            set_current_key(shard, user)
            state["count"].update((number, user))
            state["log"].append((number,))
            state["pages"].put(("/",), (number,))
            state[TIMERS.name].put((number,), (True,))


def cells(shard, states):
    """By state: key and map key to value."""
    found = {}
    for state in states:
        mine = found.setdefault(state.name, {})
        for group in shard.manifest.key_groups:
            these = shard.backend.cells(state.name, group)
            for key, at, value in zip(these.keys, these.map_keys or [None] * len(these), these.values, strict=True):
                assert (key, at) not in mine
                mine[key, at] = value
    return found


@pytest.fixture
def store():
    shard = Shard(new_manifest("lineage", 0, 1, 128, KEY), HeapBackend(range(128)))
    store = Store(shard.manifest)
    for half in (USERS[:30], USERS[30:]):
        assert shard.begin_at(store.manifest)
        filled(shard, half)
        store.put(shard.commit(f"before {half[0]}"))
    return store


MIGRATED = {
    "count": {((user,), None): (None, number) for number, user in enumerate(USERS)},
    "log": {((user,), None): [(number,)] for number, user in enumerate(USERS)},
    "pages": {((user,), ("/",)): (float(number),) for number, user in enumerate(USERS)},
    "added": {},
    TIMERS.name: {((user,), (number,)): (True,) for number, user in enumerate(USERS)},
}
EVERY_STATE = [*NEW, OLD[1]]


def test_stored_rows_take_the_form_of_the_new_declarations_and_are_written_anew(store):
    before = {ref.id for ref in store.manifest.segments}
    shard = store.restored(NEW)
    handles(shard, NEW)
    assert shard.holds(NEW)
    assert cells(shard, EVERY_STATE) == MIGRATED
    assert not shard.prepare_bases(), "no segment may hold rows of both forms"
    set_current_key(shard, "new")
    handles(shard, NEW)["count"].update(("later", 1 << 40))
    store.put(shard.commit("after"))
    assert not before & {ref.id for ref in store.manifest.segments}
    expected = MIGRATED | {"count": MIGRATED["count"] | {(("new",), None): ("later", 1 << 40)}}
    assert cells(store.restored(), EVERY_STATE) == expected
    assert {state["name"] for state in store.manifest.states} == {state.name for state in EVERY_STATE}


def test_later_versions_write_only_what_changed(store):
    shard = store.restored(NEW)
    handles(shard, NEW)
    store.put(shard.commit("all of it"))
    assert shard.begin_at(store.manifest)
    set_current_key(shard, USERS[0])
    handles(shard, NEW)["count"].update(("x", 5))
    commit = shard.commit("one cell")
    rows = [ref.rows for ref in commit.manifest.segments if ref.id in commit.segments and not ref.base]
    assert rows == [1]


def test_a_version_in_the_new_form_that_was_lost_is_written_whole_once_more(store):
    manifest, shard = store.manifest, store.restored(NEW)
    handles(shard, NEW)["count"]
    shard.commit("lost")
    assert shard.begin_at(manifest)
    assert cells(shard, EVERY_STATE) == MIGRATED
    handles(shard, NEW)
    shard.rollback()
    store.put(shard.commit("kept"))
    assert cells(store.restored(), EVERY_STATE) == MIGRATED


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (pa.schema([("n", pa.int16()), ("gone", pa.string())]), r"n: int32.*n: int16.*cannot become int16"),
        (pa.schema([("n", pa.string())]), r"n: int32.*n: string"),
        (pa.schema([("other", pa.int32())]), r"n: int32.*other: int32.*none of its fields"),
    ],
)
def test_what_cannot_be_read_as_declared_is_refused_with_both_before_anything_is_loaded(store, changed, said):
    shard = Shard(store.manifest, HeapBackend(range(128)))
    with pytest.raises(OptionError, match=said):
        shard.restore(store.segments, [StateDescriptor("count", StateKind.VALUE, changed)])
    assert not any(len(shard.backend.cells("log", group)) for group in range(128))


def test_a_shard_says_whether_its_contents_have_the_declared_form(store):
    shard = store.restored()
    assert shard.holds(OLD)
    assert shard.holds([NEW[2]]), "a state that it does not know has no form yet"
    assert not shard.holds(NEW)


def savepoint_of(shards, parallelism, disk=None):
    """A savepoint of `USERS`, written by that many shards."""
    states = []
    for number in range(shards):
        shard = Shard(new_manifest(f"old {number}", number, shards, parallelism, KEY), HeapBackend(range(parallelism)))
        groups = key_groups_of(number, shards, parallelism)
        filled(shard, [user for user in USERS if key_group_of((user,), [pa.string()], parallelism) in groups])
        states.append(ShardState.of_snapshot(shard.manifest, shard.backend, OLD))
    filesystem = FaultyFiles(disk or Disk()).filesystem()
    write_savepoint("folder", states, filesystem=filesystem)
    return Savepoint.open("folder", filesystem=filesystem)


@pytest.mark.parametrize(
    ("old", "new", "parallelism"),
    [(4, 2, 128), (2, 4, 128), (5, 7, 128), (7, 5, 128), (3, 2, 64), (8, 3, 512), (5, 2, 77), (2, 4, 96)],
)
def test_a_new_operator_of_any_layout_begins_with_every_key_where_its_rows_will_come(old, new, parallelism):
    savepoint = savepoint_of(old, parallelism)
    found = {state.name: {} for state in EVERY_STATE}
    for number in range(new):
        layout = (number, new, max_parallelism(new))
        shard = Shard(new_manifest(f"new {number}", *layout, KEY), HeapBackend(key_groups_of(*layout)))
        shard.start_from(savepoint, NEW)
        handles(shard, NEW)
        assert shard.begin_at(shard.manifest)
        store = Store(shard.manifest)
        store.put(shard.commit("first"))
        for state, mine in cells(store.restored(), EVERY_STATE).items():
            assert not mine.keys() & found[state].keys()
            found[state] |= mine
            for key, _ in mine:
                assert shard_of(key_group_of(key, [pa.string()], layout[2]), *layout[1:]) == number
    assert found == MIGRATED


def test_a_savepoint_of_another_form_is_refused_with_both():
    shard = Shard(new_manifest("new", 0, 1, 128, KEY), HeapBackend(range(128)))
    narrow = StateDescriptor("count", StateKind.VALUE, pa.schema([("n", pa.int8())]))
    with pytest.raises(OptionError, match=r"n: int32.*n: int8"):
        shard.start_from(savepoint_of(2, 128), [narrow])


def test_a_file_of_the_savepoint_that_was_altered_is_named_and_nothing_is_loaded():
    shard = Shard(new_manifest("new", 0, 1, 128, KEY), HeapBackend(range(128)))
    disk = Disk()
    savepoint = savepoint_of(2, 128, disk)
    last = savepoint.contents.files[-1]
    disk.files[f"folder/{last.name}"] = bytes(last.bytes)
    with pytest.raises(CorruptionError, match=last.name.rpartition("/")[2]):
        shard.start_from(savepoint)
    assert not any(len(shard.backend.cells("count", group)) for group in range(128))


def test_the_first_version_after_a_savepoint_leaves_out_what_has_expired():
    mortal = StateDescriptor("seen", StateKind.VALUE, pa.schema([("n", pa.int64())]), ttl=Ttl(100))
    old = Shard(new_manifest("old", 0, 1, 4, KEY), HeapBackend(range(4)))
    old.declare(mortal)
    state = old.backend.value_state(mortal)
    for user, born_ms in (("old", 0), ("young", 50)):
        set_current_key(old, user)
        state.update(((1,), born_ms))
    filesystem = FaultyFiles(Disk()).filesystem()
    write_savepoint("folder", [ShardState.of_snapshot(old.manifest, old.backend, [mortal])], filesystem=filesystem)
    new = Shard(new_manifest("new", 0, 1, 4, KEY), HeapBackend(range(4)))
    new.start_from(Savepoint.open("folder", filesystem=filesystem), [mortal])
    store = Store(new.manifest)
    assert new.begin_at(store.manifest)
    new.backend.context.now_ms = 120
    store.put(new.commit("first"))
    assert {key for key, _ in cells(store.restored([mortal]), [mortal])["seen"]} == {("young",)}
    assert new.begin_at(store.manifest)
    assert {key for key, _ in cells(new, [mortal])["seen"]} == {("young",)}, "it left live state too"


def test_a_change_that_leaves_rows_as_they_are_writes_nothing_anew():
    short, long = (
        StateDescriptor("seen", StateKind.VALUE, pa.schema([("n", pa.int64())]), ttl=Ttl(ms)) for ms in (100, 200)
    )
    shard = Shard(new_manifest("lineage", 0, 1, 4, KEY), HeapBackend(range(4)))
    store = Store(shard.manifest)
    for number, declared in enumerate((short, long, short)):
        shard = store.restored([declared])
        state = handles(shard, [declared])["seen"]
        set_current_key(shard, f"user {number}")
        state.update(((number,), 0))
        store.put(shard.commit(f"version {number}"))
        written = [(ref.base, ref.rows) for ref in store.manifest.segments if ref.version == store.manifest.version]
        assert written == [(False, 1)], "a delta, where a full version is all bases"
    assert len(cells(store.restored([short]), [short])["seen"]) == 3
