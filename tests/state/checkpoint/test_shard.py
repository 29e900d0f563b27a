"""A shard's way from version to version, over a store that is all or nothing."""

from unittest import mock

import pytest

from millpond.errors import CorruptionError, DataError, OptionError, UnavailableError
from millpond.state.checkpoint import Shard, new_manifest
from millpond.state.operator.ttl_handles import TtlValue
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.types.ttl import Ttl
from tests.state.checkpoint.shard_store import GROUPS, KEY, NUMBER, STATES, Store, applied, contents, declared


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


@pytest.mark.parametrize(("what", "changed", "full"), [("update", 75, True), ("put", 75, True), ("update", 74, False)])
def test_a_version_that_changed_most_of_the_state_consists_of_bases(what, changed, full):
    store, oracle = Store(new_manifest("lineage", 1, 3, 20, KEY)), {}
    shard = store.restored()
    oracle, _ = _commit(store, shard, [(*_user(at), what, 0) for at in range(100)], oracle)
    oracle, commit = _commit(store, shard, [(*_user(at), what, 3) for at in range(changed)] * 2, oracle)
    assert all(ref.base for ref in commit.manifest.segments) == full
    if full:
        assert sum(ref.rows for ref in commit.manifest.segments) == 100
        assert not shard.prepare_bases(), "no delta, so no bases are owed for it"
    assert contents(store.restored()) == oracle
    assert shard.begin_at(store.read_manifest()), "such a version can be undone like any other"
    applied(shard, oracle, [(*_user(at), what, 6) for at in range(100)])
    shard.commit("lost")
    assert shard.begin_at(store.read_manifest())
    assert contents(shard) == oracle


def test_a_version_that_changed_most_of_one_state_writes_no_other_state_whole():
    store, oracle = Store(new_manifest("lineage", 1, 3, 20, KEY)), {}
    shard = store.restored()
    both = [(*_user(at), "update", 0) for at in range(100)] + [(*_user(at), "put", 0) for at in range(20)]
    oracle, _ = _commit(store, shard, both, oracle)
    oracle, commit = _commit(store, shard, [(*_user(at), "update", 1) for at in range(100)], oracle)
    assert not all(ref.base for ref in commit.manifest.segments)
    assert contents(store.restored()) == oracle


def test_a_version_in_which_lists_only_grew_writes_no_list_whole():
    store, oracle = Store(new_manifest("lineage", 1, 3, 20, KEY)), {}
    shard = store.restored()
    for version in range(3):
        oracle, commit = _commit(store, shard, [(*_user(at), "append", version) for at in range(100)], oracle)
        assert {ref.base for ref in commit.manifest.segments if ref.version == version + 1} >= {False}
    assert contents(store.restored()) == oracle


def test_a_version_of_a_state_with_a_ttl_has_a_delta_though_all_of_it_changed():
    """A stream in which every version is full would never remove expired values from live state."""
    mortal = StateDescriptor("seen", StateKind.VALUE, NUMBER, ttl=Ttl(100))
    store = Store(new_manifest("lineage", 0, 1, 4, KEY))
    shard = store.restored()
    for _ in range(3):
        assert shard.begin_at(store.read_manifest())
        shard.declare(mortal)
        state = TtlValue(shard.backend, mortal, mortal.ttl)
        shard.backend.context.now_ms = 0
        for user in range(8):
            shard.backend.enter(user % 4)
            shard.backend.context.key = (str(user),)
            state.update((user,))
        commit = shard.commit("attempt")
        store.put(commit)
        assert not all(ref.base for ref in commit.manifest.segments)


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
