"""What bases leave out because it has expired leaves live state too, in the thread of the operator."""

import pyarrow as pa
import pytest

from millpond.state.checkpoint import Checkpointer, FileStorage, new_manifest, restore
from millpond.state.checkpoint import shard as shard_module
from millpond.state.checkpoint import writer as writer_module
from millpond.state.spi import ABSENT, StateDescriptor, StateKind
from millpond.state.testing.harness import Harness
from millpond.state.types.ttl import Ttl
from tests.state.conformance.kinds import ANN, BOB, EVE, changed, declare, placed, set_current_key
from tests.state.conformance.subjects import SUBJECTS

NUMBER = pa.schema([("number", pa.int64())])
BIRTH = new_manifest("a lineage", 0, 1, 4, pa.schema([("user", pa.string())]))
HOME, CART = ("home",), ("cart",)
over_backends = pytest.mark.parametrize(
    "subject", [s for s in SUBJECTS if s.name in {"heap", "rocksdb", "lru2-heap", "lru1000-rocksdb"}], ids=repr
)


class Shard:
    """One state of each kind, whose values live for 100 ms, and the checkpoints of it."""

    def __init__(self, subject, folder, clean_up=("compaction",)):
        ttl = Ttl(100, clean_up=clean_up)
        self.descriptors = [
            StateDescriptor("last", StateKind.VALUE, NUMBER, ttl=ttl),
            StateDescriptor("log", StateKind.LIST, NUMBER, ttl=ttl),
            StateDescriptor("pages", StateKind.MAP, NUMBER, pa.schema([("page", pa.string())]), ttl=ttl),
        ]
        self.storage = FileStorage(str(folder / "stored"), 0)
        self.backend = subject.open(BIRTH.key_groups, folder / "state")
        self.last, self.log, self.pages = [declare(self.backend, each) for each in self.descriptors]
        self.checkpointer = Checkpointer(self.storage, self.backend, BIRTH, self.descriptors)

    def at(self, now_ms, group=2, key=ANN):
        self.backend.context.now_ms = now_ms
        set_current_key(self.backend, group, key)

    def checkpoint(self, *, full=False):
        return self.checkpointer.write(self.checkpointer.begin(full=full))

    def live(self):
        return {
            each.name: {
                place: value
                for group in BIRTH.key_groups
                for place, value in placed(self.backend.cells(each.name, group)).items()
            }
            for each in self.descriptors
        }


@pytest.fixture
def open_shard(tmp_path):
    opened = []

    def open_shard(*args):
        opened.append(Shard(args[0], tmp_path, *args[1:]))
        return opened[-1]

    yield open_shard
    for shard in opened:
        shard.backend.close()


def fill(shard):
    """Ann's values of the times 0 and 60, and Bob's of 0."""
    shard.at(0)
    shard.last.update(((1,), 0))
    shard.log.put([((1,), 0), ((2,), 60), ((3,), 0)])
    shard.pages.put(HOME, ((1,), 0))
    shard.pages.put(CART, ((2,), 60))
    shard.at(0, key=BOB)
    shard.last.update(((4,), 0))
    shard.log.append(((4,), 0))
    shard.pages.put(HOME, ((4,), 0))


@over_backends
@pytest.mark.parametrize("full", [False, True])
def test_what_a_base_left_out_is_removed_in_the_version_that_is_open_then(open_shard, subject, full):
    shard = open_shard(subject)
    fill(shard)
    shard.checkpoint()
    before = shard.live()
    shard.checkpointer.remove_expired()
    assert shard.live() == before, "nothing had expired"
    shard.at(100, 1, EVE)
    shard.last.update(((5,), 100))
    shard.log.put([((number,), 100) for number in range(9)])
    for number in range(9):
        shard.pages.put((f"{number}",), ((5,), 100))
    for _ in range(4):  # until the bases have gone round
        shard.checkpoint(full=full)
        shard.at(100, 1, EVE)
        for number in range(9):
            shard.pages.put((f"{number}",), ((5,), 100))
    before = shard.live()
    assert (2, BOB) in before["last"], "only the operator's thread may take it out"
    shard.checkpointer.begin()
    shard.checkpointer.remove_expired()
    after = shard.live()
    assert after["last"] == {(1, EVE): ((5,), 100)}
    assert {place: value for place, value in after["log"].items() if place[0] == 2} == {(2, ANN): [((2,), 60)]}
    assert {place: value for place, value in after["pages"].items() if place[0] == 2} == {(2, ANN, CART): ((2,), 60)}
    assert shard.backend.rollback()
    assert shard.live() == before


@over_backends
def test_the_removals_are_the_next_versions_changes(open_shard, subject):
    shard = open_shard(subject)
    fill(shard)
    shard.backend.context.now_ms = 150
    shard.checkpoint(full=True)
    shard.checkpointer.remove_expired()
    assert changed(shard.backend.commit().changes()) == {
        "last": {(2, ANN): ABSENT, (2, BOB): ABSENT},
        "log": {(2, ANN): [((2,), 60)], (2, BOB): ABSENT},
        "pages": {(2, ANN, HOME): ABSENT, (2, BOB, HOME): ABSENT},
    }


@over_backends
def test_what_was_written_anew_in_the_meantime_stays(open_shard, subject):
    shard = open_shard(subject)
    fill(shard)
    shard.backend.context.now_ms = 150
    shard.checkpoint(full=True)
    shard.at(151)
    shard.last.update(((7,), 151))
    shard.log.append(((7,), 151))
    shard.pages.put(HOME, ((7,), 151))
    shard.checkpointer.remove_expired()
    assert (shard.backend.context.key_group, shard.backend.context.key) == (2, ANN)
    assert shard.last.get() == ((7,), 151)
    assert list(shard.log.get()) == [((2,), 60), ((7,), 151)]
    assert dict(shard.pages.items()) == {HOME: ((7,), 151), CART: ((2,), 60)}


@over_backends
def test_after_removals_what_is_restored_is_what_was_live(open_shard, subject, tmp_path):
    shard = open_shard(subject)
    fill(shard)
    shard.backend.context.now_ms = 150
    shard.checkpoint(full=True)
    shard.checkpointer.remove_expired()
    shard.checkpoint()
    live = shard.live()
    shard.backend.close()
    shard.backend = subject.open(BIRTH.key_groups, tmp_path / "another")
    restore(shard.storage, shard.backend, shard.descriptors)
    assert shard.live() == live
    assert live["last"] == {}


def test_a_clean_up_on_snapshots_alone_leaves_live_state_as_it_is(open_shard):
    shard = open_shard(SUBJECTS[0], ("snapshot",))
    fill(shard)
    shard.backend.context.now_ms = 150
    shard.checkpoint(full=True)
    before = shard.live()
    shard.checkpointer.remove_expired()
    assert shard.live() == before


def test_a_bounded_part_is_removed_at_a_time_and_the_rest_later(open_shard, monkeypatch):
    monkeypatch.setattr(shard_module, "BASE_STEP_ROWS", 1)
    monkeypatch.setattr(writer_module, "BASE_STEP_ROWS", 1)
    shard = open_shard(SUBJECTS[0])
    for group in BIRTH.key_groups:
        shard.at(0, group, (f"user {group}",))
        shard.last.update(((group,), 0))
    shard.backend.context.now_ms = 100
    shard.checkpoint(full=True)
    left = []
    for _ in range(5):
        left.append(len(shard.live()["last"]))
        shard.checkpointer.remove_expired()
    assert left == [4, 3, 2, 1, 0]


class Sessions:
    """Values nobody comes back to."""

    def open(self, states):
        self.last = states.value("last", int, ttl=10)
        self.seen = states.list("seen", int, ttl=10)

    def process(self, key, record, context):
        self.last.update(record)
        self.seen.append(record)


@over_backends
def test_an_operator_whose_keys_never_come_back_does_not_grow(subject, tmp_path):
    folders = (tmp_path / str(number) for number in range(9))
    with Harness(
        Sessions, key=lambda record: record, key_type=int, backend=lambda groups: subject.open(groups, next(folders))
    ) as harness:
        most = 0
        for now_ms in range(1, 40):
            harness.advance_processing_time(now_ms)
            harness.process_many(range(now_ms * 20, now_ms * 20 + 20))
            harness.checkpoint()
            most = max(most, sum(1 for _ in harness._shards.shards[0].backend.keys("last")))
        alive = set(range(30 * 20, 40 * 20))
        assert set(harness.state("last")) == set(harness.state("seen")) == alive
        assert most < 600, "alive are 200 of the 780 that were there"
        harness.restore()
        assert set(harness.state("last")) == set(harness.state("seen")) == alive


def test_a_removal_that_fails_gives_the_checkpoint_up_and_loses_nothing():
    with Harness(Sessions, key=lambda record: record, key_type=int) as harness:
        harness.process(1)
        harness.checkpoint()
        harness.process(2)
        checkpointer = harness._shards._checkpoints._checkpointers[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpointer, "remove_expired", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                harness.begin_checkpoint()
        harness.checkpoint()
        harness.restore()
        assert harness.state("last") == {1: 1, 2: 2}
