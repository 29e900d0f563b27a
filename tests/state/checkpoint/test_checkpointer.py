"""Checkpoints off Spark: several at once, failed, aborted, full and incremental, against a dict a version."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.errors import CorruptionError, DataError, OptionError, UnavailableError
from millpond.state.checkpoint import Checkpointer, FileStorage, new_manifest, restore
from millpond.state.checkpoint import shard as shard_module
from millpond.state.checkpoint import unstored as unstored_module
from millpond.state.checkpoint import writer as writer_module
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer
from millpond.state.types.ttl import Ttl
from tests.state.checkpoint.faulty_files import Disk, FaultyFiles
from tests.state.lengths import of_length

KEY = pa.schema([("user", pa.string())])
NUMBER = pa.schema([("number", pa.int64())])
STATES = {
    "count": StateDescriptor("count", StateKind.VALUE, NUMBER),
    "log": StateDescriptor("log", StateKind.LIST, pa.schema([("words", pa.list_(pa.string()))])),
    "visits": StateDescriptor("visits", StateKind.MAP, NUMBER, pa.schema([("page", pa.string())])),
    "profile": StateDescriptor("profile", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(dict)),
}
BIRTH = new_manifest("a lineage", 1, 3, 20, KEY)
GROUPS = BIRTH.key_groups


class Operator:
    """One run of a shard: storage, backend and checkpointer, restored from what is stored."""

    def __init__(self, disk, states=STATES, *, read_only=False, **restoring):
        self.files = FaultyFiles(disk)
        self.storage = FileStorage("folder", 1, filesystem=self.files.filesystem(), read_only=read_only)
        self.backend = HeapBackend(GROUPS)
        make = {
            StateKind.VALUE: self.backend.value_state,
            StateKind.LIST: self.backend.list_state,
            StateKind.MAP: self.backend.map_state,
        }
        self.handles = {name: make[descriptor.kind](descriptor) for name, descriptor in states.items()}
        self.restored = restore(self.storage, self.backend, states.values(), **restoring)
        manifest, known = (
            (self.restored.manifest, self.restored.descriptors) if self.restored else (BIRTH, states.values())
        )
        self.checkpointer = Checkpointer(self.storage, self.backend, manifest, known)

    def at(self, group, key):
        self.backend.enter(group)
        self.backend.context.key = key

    def contents(self, names=STATES):
        found = {}
        for name in names:
            for group in GROUPS:
                cells = self.backend.cells(name, group)
                map_keys = cells.map_keys or [None] * len(cells)
                for key, map_key, value in zip(cells.keys, map_keys, cells.values, strict=True):
                    assert (name, group, key, map_key) not in found
                    found[name, group, key, map_key] = value
        return found

    def apply(self, changes, oracle):
        """Changes through the handles, and to the oracle in the plainest way."""
        oracle = copy.deepcopy(oracle)
        for group, key, what, number in changes:
            self.at(group, key)
            page = (f"page {number % 3}",)
            if what == "count":
                self.handles["count"].update((number,))
                oracle["count", group, key, None] = (number,)
            elif what == "append":
                self.handles["log"].append(([str(number)],))
                oracle["log", group, key, None] = [*oracle.get(("log", group, key, None), []), ([str(number)],)]
            elif what == "put":
                self.handles["visits"].put(page, (number,))
                oracle["visits", group, key, page] = (number,)
            elif what == "remove":
                self.handles["visits"].remove(page)
                oracle.pop(("visits", group, key, page), None)
            elif what == "profile":
                profile = self.handles["profile"].get() or {}
                profile[str(number)] = number
                self.handles["profile"].update(profile)
                oracle["profile", group, key, None] = {**(oracle.get(("profile", group, key, None)) or {}), **profile}
            else:
                for handle in self.handles.values():
                    handle.clear()
                oracle = {at: value for at, value in oracle.items() if at[1:3] != (group, key)}
        return oracle


change = st.tuples(
    st.sampled_from(GROUPS),
    st.integers(0, 1),
    st.sampled_from(["count", "append", "put", "remove", "profile", "clear"]),
    st.integers(0, 9),
).map(lambda drawn: (drawn[0], (f"{drawn[0]}-{drawn[1]}",), drawn[2], drawn[3]))
some_changes = st.lists(change, min_size=1, max_size=8)


class CheckpointsAgainstADict(RuleBasedStateMachine):
    """`live` is what the backend should hold, `begun` what each pending checkpoint should."""

    @initialize(step_rows=st.sampled_from([1, 3, 50_000]), carried=st.sampled_from([0, 1000, 64 << 20]))
    def an_operator_without_state(self, step_rows, carried):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(writer_module, "BASE_STEP_ROWS", step_rows)
        self.patch.setattr(unstored_module, "MAX_CARRIED_BYTES", carried)
        self.disk = Disk()
        self.live, self.stored, self.begun = {}, {}, []
        self.operator = Operator(self.disk)

    def teardown(self):
        if hasattr(self, "patch"):
            self.patch.undo()

    @rule(changes=some_changes)
    def records_flow(self, changes):
        self.live = self.operator.apply(changes, self.live)

    @precondition(lambda self: len(self.begun) < 4)
    @rule(full=st.booleans())
    def a_checkpoint_begins(self, full):
        self.begun.append((self.operator.checkpointer.begin(7, full=full), self.live))

    @precondition(lambda self: self.begun)
    @rule()
    def the_oldest_is_written(self):
        pending, expected = self.begun.pop(0)
        stats = self.operator.checkpointer.write(pending)
        assert stats.version == pending.version == self.operator.checkpointer.manifest.version
        assert stats.full or not pending.full
        self.stored = expected

    @precondition(lambda self: self.begun)
    @rule(space=st.integers(0, 300))
    def writing_the_oldest_fails(self, space):
        pending, _ = self.begun.pop(0)
        self.operator.files.space = space
        with pytest.raises(UnavailableError):
            self.operator.checkpointer.write(pending)
        self.operator.files.heal()

    @precondition(lambda self: self.begun)
    @rule(what=st.sampled_from([("next_commit",), ("encode_base",), ("encode_delta", "encode_base")]))
    def encoding_the_oldest_fails(self, what):
        pending, expected = self.begun.pop(0)
        with pytest.MonkeyPatch.context() as patch:
            for name in what:
                module = shard_module if name == "next_commit" else writer_module
                patch.setattr(module, name, mock.Mock(side_effect=MemoryError))
            # Without a change there may be nothing to encode.
            try:
                self.operator.checkpointer.write(pending)
            except MemoryError:
                return
        self.stored = expected

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def any_is_aborted(self, data):
        pending, _ = self.begun.pop(data.draw(st.integers(0, len(self.begun) - 1)))
        self.operator.checkpointer.abort(pending)

    @rule()
    def the_process_dies(self):
        self.operator = Operator(self.disk)
        self.begun, self.live = [], self.stored

    @invariant()
    def the_backend_and_a_restore_hold_what_they_should(self):
        if hasattr(self, "operator"):
            assert self.operator.contents() == self.live

    @invariant()
    def what_is_stored_is_the_last_version_written(self):
        if hasattr(self, "operator"):
            assert Operator(self.disk, read_only=True).contents() == self.stored


TestCheckpointsAgainstADict = CheckpointsAgainstADict.TestCase
TestCheckpointsAgainstADict.settings = of_length(examples=30, steps=20)


@pytest.fixture
def disk():
    return Disk()


def counted(operator, numbers, group=7):
    for user, number in numbers.items():
        operator.at(group, (user,))
        operator.handles["count"].update((number,))


def counts(operator):
    return {key[0]: value[0] for (name, _, key, _), value in operator.contents().items() if name == "count"}


def test_records_flow_while_a_checkpoint_is_written(disk):
    operator = Operator(disk)
    counted(operator, {"ann": 1, "bob": 1})
    pending = operator.checkpointer.begin()
    in_put, go_on = threading.Event(), threading.Event()

    def wait():
        in_put.set()
        assert go_on.wait(10)

    operator.files.at = {0: wait}
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(operator.checkpointer.write, pending)
        assert in_put.wait(10)
        counted(operator, {"ann": 2, "eve": 2})
        overlapping = operator.checkpointer.begin()
        go_on.set()
        assert written.result().version == 1
    assert counts(Operator(disk)) == {"ann": 1, "bob": 1}
    operator = Operator(disk)
    assert counts(operator) == {"ann": 1, "bob": 1}
    assert overlapping.version == 2


def test_checkpoints_are_written_in_the_order_begun_and_once(disk):
    operator = Operator(disk)
    first, second = operator.checkpointer.begin(), operator.checkpointer.begin()
    with pytest.raises(OptionError, match=r"checkpoint 2 is not the oldest one begun: \[1, 2\]"):
        operator.checkpointer.write(second)
    operator.checkpointer.write(first)
    with pytest.raises(OptionError, match="checkpoint 1 is not the oldest"):
        operator.checkpointer.write(first)
    operator.checkpointer.abort(second)
    with pytest.raises(OptionError, match="checkpoint 2 is over"):
        operator.checkpointer.abort(second)


def test_an_incremental_checkpoint_writes_what_changed_and_as_much_again(disk):
    operator = Operator(disk)
    for group in GROUPS:
        counted(operator, {f"{group}-{number}": number for number in range(200)}, group)
    full = operator.checkpointer.write(operator.checkpointer.begin(full=True))
    counted(operator, {"7-1": 5}, 7)
    incremental = operator.checkpointer.write(operator.checkpointer.begin())
    assert (full.full, incremental.full) == (True, False)
    assert incremental.bytes < full.bytes / 3, "one cell, and the base of one of seven key groups"
    assert counts(Operator(disk))["7-1"] == 5


def test_what_a_failed_checkpoint_changed_goes_with_the_next_one(disk):
    operator = Operator(disk)
    for group in GROUPS:
        counted(operator, {f"{group}-{number}": number for number in range(200)}, group)
    operator.checkpointer.write(operator.checkpointer.begin(full=True))
    for group in GROUPS:
        counted(operator, {f"{group}-1": 5}, group)
    operator.files.space = 0
    with pytest.raises(UnavailableError):
        operator.checkpointer.write(operator.checkpointer.begin())
    operator.files.heal()
    counted(operator, {"7-2": 6})
    assert not operator.checkpointer.write(operator.checkpointer.begin()).full
    assert Operator(disk).contents() == operator.contents()


def test_the_blocking_part_is_the_commit_alone(disk):
    operator = Operator(disk)
    ticks = iter([100, 350])
    operator.checkpointer._clock_ns = lambda: next(ticks)
    before = dict(disk.files)
    pending = operator.checkpointer.begin(42)
    assert (pending.blocking_ns, pending.watermark_ms) == (250, 42)
    assert disk.files == before
    operator.checkpointer.write(pending)
    assert operator.storage.manifest().watermark_ms == 42


def test_full_snapshots_leave_out_what_has_expired(disk):
    ttl = Ttl(100, clean_up=("snapshot",))
    states = {"count": StateDescriptor("count", StateKind.VALUE, NUMBER, ttl=ttl)}
    operator = Operator(disk, states)
    operator.backend.context.now_ms = 1000
    for user, born in (("old", 900), ("young", 901)):
        operator.at(7, (user,))
        operator.handles["count"].update(((1,), born))
    operator.checkpointer.write(operator.checkpointer.begin(full=True))
    assert Operator(disk, states).contents(["count"]) == {("count", 7, ("young",), None): ((1,), 901)}


def test_a_state_that_nobody_declares_any_more_travels_on(disk):
    operator = Operator(disk)
    operator.at(7, ("ann",))
    operator.handles["profile"].update({"a": 1})
    counted(operator, {"ann": 1})
    operator.checkpointer.write(operator.checkpointer.begin())
    fewer = Operator(disk, {"count": STATES["count"]})
    assert {descriptor.name for descriptor in fewer.restored.descriptors} == set(STATES)
    for number in range(10):
        counted(fewer, {"ann": number})
        fewer.checkpointer.write(fewer.checkpointer.begin(full=number == 5))
    assert Operator(disk).contents() == {
        ("count", 7, ("ann",), None): (9,),
        ("profile", 7, ("ann",), None): {"a": 1},
    }


def test_a_state_that_was_never_declared_to_the_checkpointer_is_named(disk):
    operator = Operator(disk)
    stranger = operator.backend.value_state(StateDescriptor("stranger", StateKind.VALUE, NUMBER))
    operator.at(7, ("ann",))
    stranger.update((1,))
    with pytest.raises(OptionError, match="state 'stranger' is in use but was not declared"):
        operator.checkpointer.write(operator.checkpointer.begin())
    operator.checkpointer.declare(StateDescriptor("stranger", StateKind.VALUE, NUMBER))
    operator.checkpointer.write(operator.checkpointer.begin())
    assert Operator(disk).contents(["stranger"]) == {("stranger", 7, ("ann",), None): (1,)}


@pytest.mark.parametrize("full", [True, False])
def test_a_state_that_was_refused_once_is_refused_until_it_is_declared(disk, full):
    operator = Operator(disk)
    stranger = operator.backend.value_state(StateDescriptor("stranger", StateKind.VALUE, NUMBER))
    operator.at(7, ("ann",))
    stranger.update((1,))
    for number in range(2):
        counted(operator, {"bob": number})
        with pytest.raises(OptionError, match="state 'stranger' is in use but was not declared"):
            operator.checkpointer.write(operator.checkpointer.begin(full=full))
    assert operator.storage.versions() == []


def test_a_full_checkpoint_does_not_read_what_changed(disk):
    operator = Operator(disk)
    counted(operator, {"ann": 1})
    pending = operator.checkpointer.begin(full=True)
    with mock.patch.object(type(pending.snapshot), "changes", side_effect=AssertionError("read what changed")):
        assert operator.checkpointer.write(pending).full
    assert counts(Operator(disk)) == {"ann": 1}


def three_versions(disk):
    operator = Operator(disk)
    for version in (1, 2, 3):
        counted(operator, {"ann": version})
        operator.checkpointer.write(operator.checkpointer.begin(full=True))
    return operator


def damage(disk, storage, version):
    """Alter the only segment of a version."""
    (ref,) = storage.manifest(version).segments
    storage.segment(ref)
    path = storage._folder.path(storage._segments[ref.id, ref.checksum, ref.bytes])
    disk.files[path] = disk.files[path][:-1] + b"?"
    return path


@pytest.mark.parametrize("version", [1, 2, 3])
def test_any_version_that_is_kept_can_be_restored(disk, version):
    three_versions(disk)
    again = Operator(disk, version=version)
    assert counts(again) == {"ann": version}
    counted(again, {"bob": 1})
    again.checkpointer.write(again.checkpointer.begin())
    assert counts(Operator(disk)) == {"ann": version, "bob": 1}


def test_a_version_that_is_not_there_is_refused(disk):
    three_versions(disk)
    with pytest.raises(OptionError, match=r"shard 1 in folder has no version 9; it has \[1, 2, 3\]"):
        Operator(disk, version=9)


def test_a_damaged_version_is_refused_and_the_last_good_one_is_named(disk):
    path = damage(disk, three_versions(disk).storage, 3)
    with pytest.raises(CorruptionError) as caught:
        Operator(disk)
    for told in ("shard 1 in folder", "segment 2 of shard 1", "version 3", "state 'count'", path, "last good version"):
        assert told in str(caught.value)
    assert "folder is 2;" in str(caught.value)


def test_from_the_version_that_is_named_as_the_last_good_one_the_shard_goes_on(disk):
    operator = three_versions(disk)
    for version in (2, 3):
        damage(disk, operator.storage, version)
    with pytest.raises(CorruptionError, match="last good version in shard 1 in folder is 1;"):
        Operator(disk)
    again = Operator(disk, version=1)
    assert counts(again) == {"ann": 1}
    counted(again, {"ann": 7})
    again.checkpointer.write(again.checkpointer.begin())
    assert counts(Operator(disk)) == {"ann": 7}
    assert operator.storage.versions() == [1, 4], "the damaged ones are passed by"


def test_without_a_whole_version_nothing_is_restored(disk):
    operator = three_versions(disk)
    for version in (1, 2, 3):
        damage(disk, operator.storage, version)
    with pytest.raises(CorruptionError, match="No earlier version in shard 1 in folder is whole"):
        Operator(disk)


def test_a_checkpoint_that_would_not_restore_is_not_acknowledged():
    operator = Operator(Disk())
    operator.at(GROUPS[0], ("ann",))
    operator.handles["count"].update((1,))
    operator.backend.context.now_ms = 1 << 64
    with pytest.raises(DataError, match="version 1 of shard 1 could not be restored"):
        operator.checkpointer.write(operator.checkpointer.begin())
    assert operator.storage.versions() == []
    operator.backend.context.now_ms = 2
    operator.checkpointer.write(operator.checkpointer.begin())
    assert restore(operator.storage, HeapBackend(GROUPS), STATES.values()).manifest.processing_ms == 2
