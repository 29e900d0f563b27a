"""King's caches against a plain dict: whatever is done, what is read is what a dict would say."""

import copy

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millpond.state.heap.backend import HeapBackend
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer
from millpond.state.wrappers.cached_values import CachedValues
from millpond.state.wrappers.king.two_layer import TwoLayerCache
from millpond.state.wrappers.king.write_back import WriteBackCache
from tests.state.lengths import of_length

USERS = st.integers(0, 7)
SIZES = st.integers(1, 4)


class KingAgainstDict(RuleBasedStateMachine):
    """`live` is the open version, `committed` the last one, `before` the one before it while it can be gone back to."""

    @initialize(two=st.booleans(), size=SIZES, size_l2=SIZES)
    def make(self, two, size, size_l2):
        self.backend = CachedValues(HeapBackend(range(3)))
        descriptor = StateDescriptor("lists", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(list[int]))
        self.state = self.backend.value_state(descriptor)
        if two:
            self.cache = TwoLayerCache(self.backend, self.state, max_size=size, max_size_l2=size_l2)
        else:
            self.cache = WriteBackCache(self.backend, self.state, max_size=size)
        self.most = size + size_l2 if two else size
        self.live, self.committed, self.before = {}, {}, None
        self.snapshots = []

    def set_current_key(self, user):
        self.backend.enter(user % 3)
        self.backend.context.key = (user,)

    @rule(user=USERS)
    def read(self, user):
        self.set_current_key(user)
        assert self.cache.get() == self.live.get(user)
        assert self.cache.exists() == (user in self.live)

    @rule(user=USERS, number=st.integers())
    def append_in_place(self, user, number):
        self.set_current_key(user)
        value = self.cache.get() or []
        value.append(number % 100)
        self.cache.update(value)
        self.live[user] = list(value)

    @rule(user=USERS, value=st.lists(st.integers(0, 9), max_size=3))
    def replace(self, user, value):
        self.set_current_key(user)
        self.live[user] = list(value)
        self.cache.update(value)

    @rule(user=USERS)
    def clear(self, user):
        self.set_current_key(user)
        self.cache.clear()
        self.live.pop(user, None)

    @rule(user=USERS)
    def change_in_place_and_commit_without_update(self, user):
        """What was never made state is gone when the version ends; an update before it in this version may tell."""
        self.commit()
        self.set_current_key(user)
        value = self.cache.get()
        if value is not None:
            value.append(-1)
        self.commit()

    @rule()
    def update_all_states(self):
        self.cache.update_all_states()
        for user in range(8):
            self.set_current_key(user)
            assert self.state.get() == self.live.get(user)

    @rule()
    def commit(self):
        self.snapshots.append((self.backend.commit(), copy.deepcopy(self.live)))
        self.before, self.committed = self.committed, copy.deepcopy(self.live)

    @rule()
    def roll_back(self):
        self.backend.rollback()
        self.live = copy.deepcopy(self.committed)

    @rule()
    def take_the_commit_back(self):
        if self.before is not None:
            self.backend.undo_commit()
            self.committed, self.before = self.before, None
            self.live = copy.deepcopy(self.committed)

    @rule()
    def acknowledge(self):
        self.backend.acknowledge()
        self.before = None

    @rule()
    def look_at_old_snapshots(self):
        for snapshot, expected in self.snapshots:
            found = [snapshot.cells("lists", key_group) for key_group in range(3)]
            assert dict(pair for cells in found for pair in zip(cells.keys, cells.values, strict=True)) == {
                (user,): value for user, value in expected.items()
            }

    @invariant()
    def it_is_within_its_size(self):
        assert self.cache.size() <= self.most


TestKingAgainstDict = KingAgainstDict.TestCase
TestKingAgainstDict.settings = of_length(examples=100, steps=30)
