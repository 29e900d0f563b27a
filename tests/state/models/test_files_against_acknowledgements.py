"""Versions in files against what was acknowledged, through crashes, full disks, zombies and late arrivals."""

import warnings

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.errors import UnavailableError
from tests.state.checkpoint.faulty_files import Disk
from tests.state.checkpoint.file_versions import BIRTH, a_commit, on, reader, stored
from tests.state.lengths import of_length


class _Process:
    """One writer: its way to the disk, and the manifest it stands at."""

    def __init__(self, disk, *, atomic, retain, number, back):
        self.files, self.storage = on(disk, atomic=atomic, retain=retain, writer=f"writer{number}")
        versions = self.storage.versions()
        chosen = versions[-1 - back % len(versions)] if versions else None
        self.manifest = BIRTH if chosen is None else self.storage.manifest(chosen)
        self.went_back = bool(versions) and chosen != versions[-1]
        self.version = max([0, *versions])


class FilesAgainstAcknowledgements(RuleBasedStateMachine):
    """Several processes write the same shard, each thinking it is alone; all may fail at any step."""

    @initialize(atomic=st.booleans(), retain=st.integers(1, 3))
    def an_empty_disk(self, atomic, retain):
        self.disk = Disk()
        self.options = {"atomic": atomic, "retain": retain}
        self.processes = []
        self.expected = {}
        self.acknowledged = BIRTH

    def _open(self, back):
        process = _Process(self.disk, **self.options, number=len(self.processes), back=back)
        self.processes.append(process)
        return process

    @rule(back=st.integers(0, 2))
    def a_process_starts(self, back):
        self._open(back)

    def _put(self, process, based):
        process.version += 1
        token = process.storage._token
        commit = a_commit(
            process.manifest, f"{token} {process.version}", version=process.version, based=based, attempt=token
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                process.storage.put(commit)
        except UnavailableError:
            return False
        process.manifest, process.went_back = commit.manifest, False
        self.acknowledged = commit.manifest
        return True

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), based=st.sets(st.integers(0, 3)))
    def a_process_stores(self, data, based):
        process = data.draw(st.sampled_from(self.processes))
        newest = process is self.processes[-1]
        assert self._put(process, sorted(based)) == newest

    @precondition(lambda self: self.processes)
    @rule(based=st.sets(st.integers(0, 3)), step=st.integers(0, 30), back=st.integers(0, 2), then=st.booleans())
    def another_starts_while_one_stores(self, based, step, back, then):
        process, others = self.processes[-1], []

        def another():
            others.append(self._open(back))
            if then:
                self._put(others[0], [0])

        process.files.at = {step: another}
        old, before = self.acknowledged, process.manifest
        stored_whole = self._put(process, sorted(based))
        process.files.heal()
        if not others:
            return
        other = others[0]
        if stored_whole and not then and not other.went_back:
            assert other.manifest == process.manifest, "what was acknowledged was found by the one that came in between"
        if not stored_whole and not then:
            assert self.acknowledged == old
        if not stored_whole:
            assert process.manifest == before

    @precondition(lambda self: self.processes)
    @rule(
        based=st.sets(st.integers(0, 3)),
        space=st.none() | st.integers(0, 1500),
        operations=st.none() | st.integers(0, 25),
        late=st.booleans(),
    )
    def storing_fails_somewhere(self, based, space, operations, late):
        process = self.processes[-1]
        process.files.space, process.files.operations, process.files.late = space, operations, late
        self._put(process, sorted(based))
        process.files.heal()

    @rule()
    def what_was_late_lands(self):
        self.disk.land()

    @invariant()
    def every_version_is_whole_and_none_that_was_acknowledged_is_lost(self):
        if not hasattr(self, "disk"):
            return
        storage = reader(self.disk)
        versions = storage.versions()
        manifests = [stored(storage, version)[0] for version in versions]
        if self.acknowledged is not BIRTH and not any(process.went_back for process in self.processes):
            assert self.acknowledged in manifests or manifests[-1].version > self.acknowledged.version
        for ref in self.processes[-1].manifest.segments if self.processes else ():
            storage.segment(ref)


TestFilesAgainstAcknowledgements = FilesAgainstAcknowledgements.TestCase
TestFilesAgainstAcknowledgements.settings = of_length(examples=80, steps=20)
