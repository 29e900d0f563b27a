"""Restored under another declaration, state goes on, and what is stored next is restored whole under that one."""

import dataclasses

import pyarrow as pa
import pytest

from millpond.state.checkpoint import Checkpointer, FileStorage, new_manifest, restore
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.testing.harness import Harness
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer
from millpond.state.types.ttl import Ttl
from tests.state.conformance.kinds import HOME, PLACE_NAMES, declare, placed

BIRTH = new_manifest("a lineage", 0, 1, 6, pa.schema([("user", pa.string())]))
KINDS = [StateKind.VALUE, StateKind.LIST, StateKind.MAP]
NOW_MS = 1_000


@dataclasses.dataclass(frozen=True)
class Change:
    """A declaration, another one, and how a value of a number looks under each.

    Attributes:
        migrated: what the old value of a number is under the new declaration.
        made: a value that is only possible, or only written so, under the new one.
    """

    name: str
    old: dict
    new: dict
    given: object
    migrated: object
    made: object


def rows(*fields, ttl=None):
    return {"value_schema": pa.schema(fields), "ttl": ttl}


def objects(kind, ttl=None):
    return {"value_schema": OBJECT_SCHEMA, "serializer": msgspec_serializer(kind), "ttl": ttl}


COUNT, LAST = ("count", pa.int64()), ("last", pa.string())
CHANGES = [
    Change("added", rows(COUNT), rows(COUNT, LAST), lambda n: (n,), lambda n: (n, None), lambda n: (n, "x")),
    Change("dropped", rows(COUNT, LAST), rows(LAST), lambda n: (n, "x"), lambda n: ("x",), lambda n: (f"{n}",)),
    Change(
        "reordered", rows(COUNT, LAST), rows(LAST, COUNT), lambda n: (n, "x"), lambda n: ("x", n), lambda n: ("", n)
    ),
    Change(
        "widened",
        rows(("count", pa.int32())),
        rows(COUNT),
        lambda n: (n,),
        lambda n: (n,),
        lambda n: (n + (1 << 40),),
    ),
    Change("type", objects(int), objects(int | str), lambda n: n, lambda n: n, lambda n: f"{n}"),
    Change(
        "ttl-added",
        rows(COUNT),
        rows(COUNT, ttl=Ttl(500)),
        lambda n: (n,),
        lambda n: ((n,), NOW_MS),
        lambda n: ((n,), NOW_MS + n),
    ),
    Change(
        "ttl-removed",
        rows(COUNT, ttl=Ttl(500)),
        rows(COUNT),
        lambda n: ((n,), NOW_MS),
        lambda n: (n,),
        lambda n: (n,),
    ),
]


class Operator:
    """One run of a shard under one declaration of its only state."""

    def __init__(self, folder, kind, declaration):
        self.kind = kind
        map_keys = PLACE_NAMES if kind is StateKind.MAP else None
        self.descriptor = StateDescriptor("visits", kind, map_key_schema=map_keys, **declaration)
        self.backend = HeapBackend(BIRTH.key_groups)
        self.handle = declare(self.backend, self.descriptor)
        self.storage = FileStorage(str(folder), 0)
        done = restore(self.storage, self.backend, [self.descriptor], now_ms=NOW_MS)
        self.checkpointer = Checkpointer(
            self.storage, self.backend, done.manifest if done else BIRTH, [self.descriptor]
        )
        self.backend.context.now_ms = NOW_MS

    def put(self, user, value):
        self.backend.enter(user % len(BIRTH.key_groups))
        self.backend.context.key = (f"{user}",)
        if self.kind is StateKind.VALUE:
            self.handle.update(value)
        elif self.kind is StateKind.LIST:
            self.handle.put([value, value])
        else:
            self.handle.put(HOME, value)

    def checkpoint(self):
        return self.checkpointer.write(self.checkpointer.begin())

    def contents(self):
        """By user, without the second of two list elements."""
        found = {}
        for group in BIRTH.key_groups:
            for place, value in placed(self.backend.cells("visits", group)).items():
                found[int(place[1][0])] = value[0] if self.kind is StateKind.LIST else value
        return found


@pytest.fixture(params=KINDS, ids=str)
def kind(request):
    return request.param


def stored_under_the_old(folder, kind, change):
    """Twelve users, from bases of several versions and the deltas after them; what they have under the new one."""
    operator = Operator(folder, kind, change.old)
    for user in range(12):
        operator.put(user, change.given(user))
        operator.checkpoint()
    operator.put(3, change.given(33))
    operator.checkpoint()
    return {user: change.migrated(33 if user == 3 else user) for user in range(12)}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_what_is_stored_after_a_change_is_restored_whole(tmp_path, kind, change):
    expected = stored_under_the_old(tmp_path, kind, change)
    operator = Operator(tmp_path, kind, change.new)
    assert operator.contents() == expected
    operator.put(5, change.made(5))
    expected[5] = change.made(5)
    assert operator.checkpoint().full, "old segments are not read under the new declaration"
    again = Operator(tmp_path, kind, change.new)
    assert again.contents() == expected
    for user in (3, 7):
        again.put(user, change.made(user))
        expected[user] = change.made(user)
        assert not again.checkpoint().full
    assert Operator(tmp_path, kind, change.new).contents() == expected


def test_the_full_checkpoint_that_a_change_asks_for_is_owed_until_it_is_stored(tmp_path, kind):
    change = CHANGES[0]
    expected = stored_under_the_old(tmp_path, kind, change)
    operator = Operator(tmp_path, kind, change.new)
    operator.put(5, change.made(5))
    expected[5] = change.made(5)
    operator.checkpointer.abort(operator.checkpointer.begin())
    operator.put(6, change.made(6))
    expected[6] = change.made(6)
    assert operator.checkpoint().full
    assert Operator(tmp_path, kind, change.new).contents() == expected


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_without_a_change_the_first_checkpoint_after_a_restore_is_incremental(tmp_path, kind, change):
    for declaration, value in ((change.old, change.given), (change.new, change.made)):
        folder = tmp_path / f"{declaration is change.old}"
        first = Operator(folder, kind, declaration)
        for user in range(1, 5):
            first.put(user, value(user))
        first.checkpoint()
        second = Operator(folder, kind, declaration)
        second.put(2, value(2))
        assert not second.checkpoint().full


class Visits:
    """Keeps what it is given, in a value, a list and a map of a type."""

    def __init__(self, kind, ttl=None):
        self.kind, self.ttl = kind, ttl

    def open(self, states):
        self.last = states.value("last", self.kind, ttl=self.ttl)
        self.all = states.list("all", self.kind, ttl=self.ttl)
        self.pages = states.map("pages", str, self.kind, ttl=self.ttl)

    def process(self, key, record, context):
        self.last.update(record)
        self.all.append(record)
        self.pages.put("home", record)


def key_of(record):
    return int(str(record)) % 5


def harness(folder, kind, ttl=None):
    return Harness(lambda: Visits(kind, ttl), key=key_of, key_type=int, shards=2, storage=str(folder))


def state(harness):
    return {name: dict(harness.state(name)) for name in ("last", "all", "pages")}


@pytest.mark.parametrize(
    ("kind", "ttl", "given"), [(int | str, None, "12"), (int, 500, 12)], ids=["another-type", "ttl-added"]
)
def test_an_operator_goes_on_under_a_changed_declaration(tmp_path, kind, ttl, given):
    with harness(tmp_path, int) as old:
        for record in range(10):
            old.process(record)
            old.checkpoint()
        expected = state(old)
    with harness(tmp_path, kind, ttl) as new:
        new.advance_processing_time(NOW_MS)
        new.restore()
        assert state(new) == expected
        new.process(given)
        assert [stats.full for stats in new.checkpoint()] == [True, True]
        new.process(13)
        assert [stats.full for stats in new.checkpoint()] == [False, False]
        expected = state(new)
        assert expected["last"] == {0: 5, 1: 6, 2: given, 3: 13, 4: 9}
    with harness(tmp_path, kind, ttl) as again:
        again.advance_processing_time(NOW_MS + 499)
        again.restore()
        assert state(again) == expected
        again.advance_processing_time(NOW_MS + 500)
        assert state(again) == (expected if ttl is None else {"last": {}, "all": {}, "pages": {}})
