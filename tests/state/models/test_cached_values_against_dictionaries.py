"""An operator behind King's caches against a plain dict: checkpoints, crashes, savepoints and other numbers of shards.

Whatever is done to the operator, its state is what a dict would hold; no step of it is a flush.
"""

import copy
from tempfile import TemporaryDirectory

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from millpond.state import Harness, TwoLayer, WriteBack
from tests.state.lengths import of_length

USERS = st.integers(0, 9)
SIZES = st.integers(1, 4)


class Lists:
    """Remembers numbers by user: one list in a cached value, and how many in a state that is not cached."""

    def open(self, states):
        self.numbers = states.value("numbers", list[int], cache=self.choice)
        self.seen = states.value("seen", int, default=0)

    def process(self, user, record, _context):
        _, act, number = record
        if act == "clear":
            self.numbers.clear()
            return
        numbers = self.numbers.get() or []
        if act == "append":
            numbers.append(number)
            self.numbers.update(numbers)
            numbers.append(-1)  # no state: the caller's own list
            numbers.pop()
            self.seen.update(self.seen.get() + 1)


class CachedAgainstDict(RuleBasedStateMachine):
    """`live` is what the operator holds, `stored` what its last checkpoint or savepoint does, None before the first."""

    @initialize(two=st.booleans(), size=SIZES, size_l2=SIZES, shards=st.integers(1, 3))
    def make(self, two, size, size_l2, shards):
        self.folder = TemporaryDirectory()
        choice = TwoLayer(max_size=size, max_size_l2=size_l2) if two else WriteBack(max_size=size)
        self.harness = Harness(
            type("Lists", (Lists,), {"choice": choice}), key=lambda record: record[0], key_type=int, shards=shards
        )
        self.live, self.begun, self.stored = {}, {}, None
        self.savepoints = []

    @rule(
        records=st.lists(st.tuples(USERS, st.sampled_from(["append", "append", "read", "clear"]), st.integers(0, 99)))
    )
    def process(self, records):
        self.harness.process_many(records)
        for user, act, number in records:
            if act == "append":
                self.live.setdefault(user, []).append(number)
            elif act == "clear":
                self.live.pop(user, None)

    @rule(full=st.booleans())
    def checkpoint(self, full):
        self.harness.checkpoint(full=full)
        self.begun = copy.deepcopy(self.live)
        self.stored = self.begun

    @rule()
    def a_checkpoint_that_is_given_up(self):
        self.harness.begin_checkpoint().abort()
        self.begun = copy.deepcopy(self.live)

    @rule()
    def roll_back(self):
        self.harness.rollback()
        self.live = copy.deepcopy(self.begun)

    @precondition(lambda self: self.stored is not None)
    @rule()
    def crash_and_restore(self):
        self.harness.crash()
        self.harness.restore()
        self.live, self.begun = copy.deepcopy(self.stored), copy.deepcopy(self.stored)

    @rule()
    def savepoint(self):
        location = f"{self.folder.name}/{len(self.savepoints)}"
        self.harness.savepoint(location)
        self.savepoints.append((location, copy.deepcopy(self.live)))

    @precondition(lambda self: self.savepoints)
    @rule(data=st.data(), shards=st.integers(1, 4))
    def restore_a_savepoint(self, data, shards):
        location, held = data.draw(st.sampled_from(self.savepoints))
        self.harness.restore_savepoint(location, shards=shards)
        self.live, self.begun, self.stored = copy.deepcopy(held), copy.deepcopy(held), None

    @rule(shards=st.integers(1, 4))
    def rescale(self, shards):
        self.harness.rescale(shards)
        self.begun, self.stored = copy.deepcopy(self.live), None

    @rule()
    def look(self):
        assert self.harness.state("numbers") == self.live

    def teardown(self):
        if hasattr(self, "harness"):
            assert self.harness.state("numbers") == self.live
            self.harness.close()
            self.folder.cleanup()


TestCachedAgainstDict = CachedAgainstDict.TestCase
TestCachedAgainstDict.settings = of_length(examples=40, steps=20)
