"""A shard's way from version to version, against a plain dictionary a version and a store that is all or nothing."""

import copy
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.errors import CorruptionError, DataError, OptionError, UnavailableError
from millpond.state.checkpoint import Manifest, Shard, new_manifest
from millpond.state.checkpoint import next_manifest as next_manifest_module
from millpond.state.checkpoint import writer as writer_module
from millpond.state.checkpoint.format import segment as segments_module
from millpond.state.operator.ttl_handles import TtlValue
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.types.ttl import Ttl
from tests.state.lengths import of_length

KEY = pa.schema([("user", pa.string())])
NUMBER = pa.schema([("number", pa.int64())])
STATES = {
    "count": StateDescriptor("count", StateKind.VALUE, NUMBER),
    "log": StateDescriptor("log", StateKind.LIST, pa.schema([("words", pa.list_(pa.string()))])),
    "visits": StateDescriptor("visits", StateKind.MAP, NUMBER, pa.schema([("page", pa.string())])),
}


class Store:
    """What Spark's state store is to a shard: a version is there whole, or it is not there."""

    def __init__(self, manifest):
        self.manifest = manifest.encode()
        self.segments = {}

    def put(self, commit):
        assert not commit.segments.keys() & self.segments.keys()
        self.segments |= commit.segments
        for segment_id in commit.dropped:
            del self.segments[segment_id]
        self.manifest = commit.manifest.encode()

    def read_manifest(self):
        return Manifest.decode(self.manifest, "the manifest")

    def restored(self):
        manifest = self.read_manifest()
        shard = Shard(manifest, HeapBackend(manifest.key_groups))
        shard.restore(self.segments)
        return shard


def declared(shard):
    """Handles of every state, as an operator's init makes them."""
    handles = {}
    for name, descriptor in STATES.items():
        shard.declare(descriptor)
        make = {"value": shard.backend.value_state, "list": shard.backend.list_state, "map": shard.backend.map_state}
        handles[name] = make[descriptor.kind](descriptor)
    return handles


def contents(shard):
    """Every cell of a shard: by state, key group, key and map key."""
    found = {}
    for name in STATES:
        for group in shard.manifest.key_groups:
            cells = shard.backend.cells(name, group)
            map_keys = cells.map_keys or [None] * len(cells)
            for key, map_key, value in zip(cells.keys, map_keys, cells.values, strict=True):
                assert (name, group, key, map_key) not in found
                found[name, group, key, map_key] = value
    return found


def applied(shard, oracle, changes):
    """Run a version's changes through the handles, and through the oracle in the plainest way."""
    handles, oracle = declared(shard), copy.deepcopy(oracle)
    for group, key, what, number in changes:
        shard.backend.enter(group)
        shard.backend.context.key = key
        page = (f"page {number % 3}",)
        if what == "update":
            handles["count"].update((number,))
            oracle["count", group, key, None] = (number,)
        elif what == "append":
            handles["log"].append(([str(number)],))
            oracle["log", group, key, None] = [*oracle.get(("log", group, key, None), []), ([str(number)],)]
        elif what == "put":
            handles["visits"].put(page, (number,))
            oracle["visits", group, key, page] = (number,)
        elif what == "remove":
            handles["visits"].remove(page)
            oracle.pop(("visits", group, key, page), None)
        else:
            for handle in handles.values():
                handle.clear()
            oracle = {at: value for at, value in oracle.items() if at[1:3] != (group, key)}
    return oracle


GROUPS = new_manifest("lineage", 1, 3, 20, KEY).key_groups
change = st.tuples(
    st.sampled_from(GROUPS),
    st.integers(0, 2),
    st.sampled_from(["update", "append", "put", "remove", "clear"]),
    st.integers(0, 9),
).map(lambda drawn: (drawn[0], (f"{drawn[0]}-{drawn[1]}",), drawn[2], drawn[3]))
changes_of_a_version = st.lists(change, max_size=8)


class ShardAgainstTheStore(RuleBasedStateMachine):
    """`memory` is a host's shard, which may stand anywhere; `oracle` is what the store's version holds."""

    def __init__(self):
        super().__init__()
        self.store = Store(new_manifest("lineage", 1, 3, 20, KEY))
        self.oracle = {}
        self.memory = None
        self.attempts = 0
        self.patches = []

    @initialize(max_bytes=st.sampled_from([1, 100, 1 << 20]), step_rows=st.sampled_from([1, 3, 50_000]))
    def with_small_segments_and_steps(self, max_bytes, step_rows):
        self.patches = [
            mock.patch.object(segments_module, "MAX_SEGMENT_BYTES", max_bytes),
            mock.patch.object(writer_module, "BASE_STEP_ROWS", step_rows),
        ]
        for patch in self.patches:
            patch.start()

    def teardown(self):
        for patch in self.patches:
            patch.stop()

    def _token(self):
        self.attempts += 1
        return f"attempt {self.attempts}"

    def _begin(self):
        """What a host does first: stand at the store's manifest, or else restore."""
        manifest = self.store.read_manifest()
        if self.memory is None or not self.memory.begin_at(manifest):
            self.memory = self.store.restored()
            assert self.memory.begin_at(manifest)
        assert self.memory.manifest.is_same_version_as(manifest)
        assert contents(self.memory) == self.oracle

    @rule(changes=changes_of_a_version)
    def a_version_is_stored(self, changes):
        self._begin()
        self.oracle = applied(self.memory, self.oracle, changes)
        self.store.put(self.memory.commit(self._token(), watermark_ms=self.attempts))
        assert self.store.read_manifest().watermark_ms == self.attempts

    @rule(changes=changes_of_a_version, prepared=st.integers(0, 3))
    def a_version_is_committed_in_memory_and_lost(self, changes, prepared):
        self._begin()
        applied(self.memory, self.oracle, changes)
        self.memory.commit(self._token())
        for _ in range(prepared):
            self.memory.prepare_bases()
        assert self.memory.begin_at(self.store.read_manifest())
        assert contents(self.memory) == self.oracle

    @rule(changes=changes_of_a_version)
    def a_version_is_committed_in_memory_and_nobody_hears_of_it(self, changes):
        self._begin()
        applied(self.memory, self.oracle, changes)
        self.memory.commit(self._token())

    @rule(changes=changes_of_a_version)
    def user_code_fails(self, changes):
        self._begin()
        applied(self.memory, self.oracle, changes)
        self.memory.backend.rollback()
        assert contents(self.memory) == self.oracle

    @rule(changes=changes_of_a_version)
    def encoding_fails(self, changes):
        self._begin()
        applied(self.memory, self.oracle, [*changes, (GROUPS[0], ("odd",), "update", 1)])
        with (
            mock.patch.object(next_manifest_module, "encode_segments", side_effect=MemoryError),
            pytest.raises(MemoryError),
        ):
            self.memory.commit(self._token())
        assert contents(self.memory) == self.oracle

    @rule()
    def the_host_dies(self):
        self.memory = None

    @rule(ours=changes_of_a_version, theirs=st.lists(changes_of_a_version, min_size=1, max_size=2))
    def another_attempt_wins(self, ours, theirs):
        self._begin()
        applied(self.memory, self.oracle, ours)
        self.memory.commit(self._token())
        other = self.store.restored()
        for changes in theirs:
            assert other.begin_at(self.store.read_manifest())
            self.oracle = applied(other, self.oracle, changes)
            self.store.put(other.commit(self._token()))
        assert not self.memory.begin_at(self.store.read_manifest())
        self.memory = None

    @precondition(lambda self: self.memory is not None)
    @rule(steps=st.integers(1, 4))
    def the_host_prepares_bases_while_idle(self, steps):
        for _ in range(steps):
            self.memory.prepare_bases()

    @invariant()
    def a_fresh_restore_is_the_oracle(self):
        assert contents(self.store.restored()) == self.oracle

    @invariant()
    def the_store_holds_the_manifests_segments_and_no_others(self):
        refs = self.store.read_manifest().segments
        assert {ref.id: ref.bytes for ref in refs} == {at: len(data) for at, data in self.store.segments.items()}
        assert len(refs) == len(self.store.segments)


ShardAgainstTheStore.TestCase.settings = of_length(examples=20, steps=15)
TestShardAgainstTheStore = ShardAgainstTheStore.TestCase


def _commit(store, shard, changes, oracle):
    assert shard.begin_at(store.read_manifest())
    oracle = applied(shard, oracle, changes)
    commit = shard.commit(f"attempt {shard.manifest.version}")
    store.put(commit)
    return oracle, commit


def _user(at):
    group = GROUPS[at % len(GROUPS)]
    return group, (f"user {at}",)


@pytest.mark.parametrize("hot", [1, 10, 150])
def test_the_log_stays_within_twice_the_state_and_the_deltas_of_one_rotation(hot):
    """In rows, since a segment of a few rows is mostly its schema.

    Bases hold every cell once, but for those of one step that a rotation has replaced in part. A rotation ends
    when as many cells were based as there are, so its deltas are as many cells again, and two versions' more at
    its ends.
    """
    store, users, oracle = Store(new_manifest("lineage", 1, 3, 20, KEY)), 300, {}
    shard = store.restored()
    everybody = [(*_user(at), "update", 0) for at in range(users)]
    oracle, _ = _commit(store, shard, everybody, oracle)
    largest_group = -(-users // len(GROUPS))
    written = []
    for version in range(120):
        changes = [(*_user(at), "update", version) for at in range(hot)]
        oracle, commit = _commit(store, shard, changes, oracle)
        refs = commit.manifest.segments
        written.append(sum(ref.rows for ref in refs if ref.id in commit.segments))
        live = sum(ref.rows for ref in refs)
        if version > 2 * len(GROUPS):
            assert live <= 2 * users + 2 * (hot + largest_group)
    assert contents(store.restored()) == oracle
    assert max(written[2:]) <= 2 * hot + largest_group, "a version costs what it touches"


def test_deleting_everything_leaves_next_to_nothing_after_a_rotation():
    store, oracle = Store(new_manifest("lineage", 1, 3, 20, KEY)), {}
    shard = store.restored()
    oracle, _ = _commit(store, shard, [(*_user(at), "put", at) for at in range(100)], oracle)
    oracle, _ = _commit(store, shard, [(*_user(at), "clear", 0) for at in range(100)], oracle)
    assert oracle == {}
    for version in range(3):
        oracle, commit = _commit(store, shard, [(*_user(0), "update", version)], oracle)
    assert sum(ref.rows for ref in commit.manifest.segments) < 10
    assert contents(store.restored()) == oracle


def test_a_version_without_changes_writes_no_segment():
    store = Store(new_manifest("lineage", 1, 3, 20, KEY))
    shard = store.restored()
    _, commit = _commit(store, shard, [], {})
    assert (commit.segments, commit.dropped, commit.manifest.version) == ({}, (), 1)


def test_bases_prepared_while_idle_are_those_that_a_busy_shard_makes_up():
    stores = [Store(new_manifest("lineage", 1, 3, 20, KEY)) for _ in range(2)]
    shards, oracle = [store.restored() for store in stores], {}
    for version in range(6):
        changes = [(*_user(at), "put", version + at) for at in range(0, 30, version + 1)]
        commits = [_commit(store, shard, changes, oracle) for store, shard in zip(stores, shards, strict=True)]
        oracle = commits[0][0]
        while shards[0].prepare_bases():
            continue
        assert commits[0][1].manifest.segments == commits[1][1].manifest.segments


def test_what_has_expired_leaves_state_and_checkpoint_as_bases_go_round():
    mortal = StateDescriptor("seen", StateKind.VALUE, NUMBER, ttl=Ttl(100))
    store = Store(new_manifest("lineage", 0, 1, 4, KEY))

    def entered(shard, users, now_ms):
        shard.declare(mortal)
        state = TtlValue(shard.backend, mortal, mortal.ttl)
        shard.backend.context.now_ms = now_ms
        for user in users:
            shard.backend.enter(user % 4)
            shard.backend.context.key = (str(user),)
            state.update((user,))

    def rows(shard):
        return sum(len(shard.backend.cells("seen", key_group)) for key_group in range(4))

    shard = store.restored()
    held = []
    for version in range(60):
        assert shard.begin_at(store.read_manifest())
        if version % 7 == 3:
            # An attempt that fails, and one whose commit Spark did not accept, change nothing of this.
            entered(shard, range(5), version * 10)
            shard.rollback()
            assert shard.begin_at(store.read_manifest())
            entered(shard, range(5), version * 10)
            shard.commit("not accepted")
            assert shard.begin_at(store.read_manifest())
        entered(shard, range(version * 10, version * 10 + 10), version * 10)
        store.put(shard.commit(f"version {version}"))
        held.append(rows(shard))
    assert max(held) <= 4 * 100, "ten are born a version and live for ten versions"
    assert sum(ref.rows for ref in store.read_manifest().segments) <= 6 * 100
    restored = store.restored()
    restored.backend.context.now_ms = shard.backend.context.now_ms
    living = {str(user) for user in range(500, 600)}
    for each in (shard, restored):
        assert {key for group in range(4) for (key,) in each.living_cells("seen", group).keys} == living


@pytest.fixture
def stored():
    """A store of several versions, bases and deltas, and what it holds."""
    store, oracle = Store(new_manifest("lineage", 1, 3, 20, KEY)), {}
    shard = store.restored()
    for version in range(5):
        kinds = ("update", "append", "put")
        changes = [(*_user(at), kinds[at % 3], version) for at in range(version, 20 + version)]
        oracle, _ = _commit(store, shard, changes, oracle)
    refs = store.read_manifest().segments
    assert {ref.base for ref in refs} == {True, False}
    assert {ref.state for ref in refs} == set(STATES)
    return store, oracle


def _flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


DAMAGES = {
    "missing": lambda data: None,
    "a bit of the magic flipped": lambda data: _flipped(data, 3),
    "a bit of the padding flipped": lambda data: _flipped(data, 8 * 6),
    "a bit of the checksum flipped": lambda data: _flipped(data, 8 * 9),
    "a bit of the body flipped": lambda data: _flipped(data, 8 * (24 + len(data)) // 2),
    "its last bit flipped": lambda data: _flipped(data, 8 * len(data) - 1),
    "cut in the body": lambda data: data[:-1],
    "cut in the header": lambda data: data[:10],
    "empty": lambda data: b"",
    "longer than written": lambda data: data + b"\0",
    "of another format version": lambda data: data[:4] + b"\x09" + data[5:],
    "a manifest": lambda data: new_manifest("lineage", 1, 3, 20, KEY).encode(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_segment_is_refused_by_name(stored, damage):
    store, oracle = stored
    manifest = store.read_manifest()
    for ref in manifest.segments:
        damaged = dict(store.segments)
        damaged[ref.id] = damage(damaged[ref.id])
        if damaged[ref.id] is None:
            del damaged[ref.id]
        shard = Shard(manifest, HeapBackend(manifest.key_groups))
        with pytest.raises(CorruptionError) as refused:
            shard.restore(damaged)
        assert f"segment {ref.id} of shard 1, version 5, state {ref.state!r}" in str(refused.value)
    assert contents(store.restored()) == oracle, "nothing was changed by the refusals"


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_nothing_is_loaded_when_the_first_segment_is_damaged(stored, damage):
    store, _ = stored
    manifest = store.read_manifest()
    first = min(manifest.segments, key=lambda ref: (ref.version, not ref.base, ref.id))
    damaged = {**store.segments, first.id: damage(store.segments[first.id])}
    if damaged[first.id] is None:
        del damaged[first.id]
    shard = Shard(manifest, HeapBackend(manifest.key_groups))
    with pytest.raises(CorruptionError):
        shard.restore(damaged)
    assert contents(shard) == {}


def test_a_whole_segment_of_another_attempt_is_not_taken(stored):
    """Both attempts write the same ids; a store that mixes them must not be believed."""
    store, oracle = stored
    other, winner = store.restored(), store.restored()
    manifest = store.read_manifest()
    commits = []
    for shard, number in ((other, 1), (winner, 2)):
        assert shard.begin_at(manifest)
        applied(shard, oracle, [(*_user(0), "update", number)])
        commits.append(shard.commit(f"attempt {number}"))
    late, won = commits
    store.put(won)
    assert late.segments.keys() == won.segments.keys()
    changed = [at for at in won.segments if late.segments[at] != won.segments[at]]
    assert changed
    for segment_id in changed:
        store.segments[segment_id] = late.segments[segment_id]
        with pytest.raises(CorruptionError, match=f"segment {segment_id} of shard 1, version 6, .*another one"):
            store.restored()


def test_another_lineage_is_not_stood_at(stored):
    store, _ = stored
    shard = store.restored()
    assert not shard.begin_at(new_manifest("another", 1, 3, 20, KEY))
    assert shard.begin_at(store.read_manifest())


def test_a_version_can_be_taken_back_only_once(stored):
    store, oracle = stored
    shard, manifest = store.restored(), store.read_manifest()
    assert shard.begin_at(manifest)
    applied(shard, oracle, [(*_user(0), "update", 77)])
    first = shard.commit("first").manifest
    assert shard.begin_at(first)
    assert not shard.begin_at(manifest), "the version before was acknowledged"


def test_what_a_version_that_broke_off_changed_is_not_in_the_next_one(stored):
    store, oracle = stored
    shard = store.restored()
    assert shard.begin_at(store.read_manifest())
    applied(shard, oracle, [(*_user(0), "update", 77)])
    assert shard.begin_at(store.read_manifest())
    assert contents(shard) == oracle
    store.put(shard.commit("again"))
    assert contents(store.restored()) == oracle


def test_a_state_that_is_no_longer_declared_is_kept(stored):
    store, oracle = stored
    shard = store.restored()
    for _ in range(15):
        assert shard.begin_at(store.read_manifest())
        count = shard.backend.value_state(STATES["count"])
        for at in range(12):
            group, key = _user(at)
            shard.backend.enter(group)
            shard.backend.context.key = key
            count.update((5,))
            oracle["count", group, key, None] = (5,)
        store.put(shard.commit(f"later {shard.manifest.version}"))
    assert contents(store.restored()) == oracle


def test_a_shard_whose_failed_commit_could_not_be_undone_stands_nowhere():
    shard = Shard(new_manifest("lineage", 0, 1, 4, KEY), HeapBackend(range(4)))
    before, count = shard.manifest, declared(shard)["count"]
    assert shard.begin_at(before)
    shard.backend.enter(0)
    shard.backend.context.key = ("ann",)
    count.update((1,))
    with (
        mock.patch.object(shard, "encode", side_effect=DataError("it does not encode.")),
        mock.patch.object(shard.backend, "undo_commit", side_effect=UnavailableError("the disk is full.")),
        pytest.raises(UnavailableError),
    ):
        shard.commit("token")
    shard.rollback()
    assert not shard.begin_at(before)


def test_a_state_that_was_not_declared_is_refused_by_name_and_the_version_can_be_run_again():
    store = Store(new_manifest("lineage", 1, 3, 20, KEY))
    shard = store.restored()
    oracle, _ = _commit(store, shard, [(*_user(0), "update", 1)], {})
    assert shard.begin_at(store.read_manifest())
    stranger = shard.backend.value_state(StateDescriptor("stranger", StateKind.VALUE, NUMBER))
    shard.backend.enter(GROUPS[0])
    shard.backend.context.key = ("ann",)
    stranger.update((1,))
    with pytest.raises(OptionError, match="state 'stranger' is in use but was not declared"):
        shard.commit("token")
    assert contents(shard) == oracle
    shard.declare(stranger.descriptor)
    oracle, _ = _commit(store, shard, [(*_user(1), "update", 2)], oracle)
    assert contents(store.restored()) == oracle
