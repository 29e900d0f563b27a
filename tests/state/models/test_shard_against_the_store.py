"""A shard's way from version to version, against a plain dictionary a version and a store that is all or nothing."""

from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.state.checkpoint import new_manifest
from millpond.state.checkpoint import next_manifest as next_manifest_module
from millpond.state.checkpoint import writer as writer_module
from millpond.state.checkpoint.format import segment as segments_module
from tests.state.checkpoint.shard_store import GROUPS, KEY, Store, applied, contents
from tests.state.lengths import of_length

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
