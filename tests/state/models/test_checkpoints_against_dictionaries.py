"""Checkpoints in files against plain dictionaries, over every backend and wrapper.

Checkpoints are begun, several at once, written late, aborted, or fail; the operator crashes at any time
and comes back, on the same backend or another, as of the last one that was stored.
"""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from millpond.state.checkpoint.checkpointer import Checkpointer
from millpond.state.checkpoint.format.manifest import new_manifest
from millpond.state.checkpoint.restoring import restore
from millpond.state.checkpoint.storage.files import FileStorage
from millpond.state.spi import ABSENT, HeapBackend, StateKind
from tests.state.conformance.kinds import DICT, FLAT_ROW, GROUPS, INTEGER, Cell, everything, set_current_key
from tests.state.conformance.subjects import IN_MEMORY, SUBJECTS

USERS = [(3, ("ann",)), (3, (None,)), (4, ("bob",)), (5, ("zoe",))]
KINDS = {"count": (StateKind.VALUE, FLAT_ROW), "log": (StateKind.LIST, DICT), "pages": (StateKind.MAP, INTEGER)}
KEY_SCHEMA = pa.schema([("user", pa.string())])

users = st.sampled_from(USERS)
names = st.sampled_from(list(KINDS))


class FullDisk(FileStorage):
    """A storage that refuses a version when it is told to."""

    is_full = False

    def put(self, commit):
        if self.is_full:
            raise OSError("no space left")
        super().put(commit)


class Checkpoints(RuleBasedStateMachine):
    """`live` is the state now, `begun` what unfinished checkpoints hold, `stored` what the versions in files hold."""

    subject = SUBJECTS[0]

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory(dir=IN_MEMORY)
        self.opened = 0
        self.live = {name: {} for name in KINDS}
        self.begun = []
        self.stored = {}
        self._open(self.subject)

    def _open(self, subject):
        self.opened += 1
        self.backend = subject.open(GROUPS, Path(self.folder.name) / str(self.opened))
        self.cells = {name: Cell(self.backend, shape, kind, name) for name, (shape, kind) in KINDS.items()}
        descriptors = [cell.descriptor for cell in self.cells.values()]
        self.storage = FullDisk(f"{self.folder.name}/versions", shard=1, retain=2)
        found = restore(self.storage, self.backend, descriptors)
        assert (found is None) == (not self.stored)
        manifest = new_manifest("lineage", 1, 3, 9, KEY_SCHEMA) if found is None else found.manifest
        assert manifest.key_groups == GROUPS
        self.checkpointer = Checkpointer(self.storage, self.backend, manifest, descriptors)

    def _expected(self, state, name):
        cell, (_, kind) = self.cells[name], KINDS[name]
        return cell.placed({user: kind.make(number) for user, number in state[name].items()})

    @rule(name=names, user=users, number=st.none() | st.integers(0, 4))
    def change(self, name, user, number):
        set_current_key(self.backend, *user)
        if number is None:
            self.cells[name].clear()
            self.live[name].pop(user, None)
        else:
            self.cells[name].put(KINDS[name][1].make(number))
            self.live[name][user] = number

    @rule(name=names, user=users, number=st.none() | st.integers(0, 4))
    def change_without_a_key(self, name, user, number):
        value = ABSENT if number is None else KINDS[name][1].make(number)
        self.backend.write(name, self.cells[name].cells({user: value}))
        self.live[name].pop(user, None)
        if number is not None:
            self.live[name][user] = number

    @rule(name=names)
    def look(self, name):
        assert everything(self.backend, name) == self._expected(self.live, name)

    @rule(full=st.booleans())
    def begin(self, full):
        self.begun.append((self.checkpointer.begin(full=full), copy.deepcopy(self.live)))

    @precondition(lambda self: self.begun)
    @rule()
    def write(self):
        pending, state = self.begun.pop(0)
        self.checkpointer.write(pending)
        self.stored[pending.version] = state

    @precondition(lambda self: self.begun)
    @rule()
    def fail(self):
        self.storage.is_full = True
        with pytest.raises(OSError, match="space"):
            self.checkpointer.write(self.begun.pop(0)[0])
        self.storage.is_full = False

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def abort(self, data):
        at = data.draw(st.integers(0, len(self.begun) - 1))
        self.checkpointer.abort(self.begun.pop(at)[0])

    @rule(into=st.sampled_from(SUBJECTS))
    def crash(self, into):
        self.backend.close()
        self.begun = []
        self.live = copy.deepcopy(self.stored[max(self.stored)]) if self.stored else {name: {} for name in KINDS}
        self._open(into)
        for name in KINDS:
            self.look(name)

    @precondition(lambda self: self.stored)
    @rule()
    def look_at_the_versions_in_files(self):
        versions = self.storage.versions()
        assert versions == sorted(self.stored)[-2:]
        for version in versions:
            other = HeapBackend(GROUPS)
            restore(
                FileStorage(f"{self.folder.name}/versions", shard=1, read_only=True),
                other,
                [cell.descriptor for cell in self.cells.values()],
                version=version,
            )
            for name in KINDS:
                assert everything(other, name) == self._expected(self.stored[version], name)

    def teardown(self):
        self.look_at_the_versions_in_files() if self.stored else None
        self.backend.close()
        self.folder.cleanup()


for _subject in SUBJECTS:
    _case = type(f"Checkpoints {_subject.name}", (Checkpoints,), {"subject": _subject}).TestCase
    _case.settings = settings(
        max_examples=max(1, int(settings.default.max_examples * 0.06)),
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    globals()[f"Test_{_subject.name}"] = _case
# Test runners collect every test case that a module names, and this one has its name already.
del _case
