"""What has expired is in no savepoint and is given by no reader: by the rule of a full checkpoint."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.state.backend.expiry import alive
from millpond.state.checkpoint.format.segment import CellCodec
from millpond.state.checkpoint.living_rows import living_rows
from millpond.state.checkpoint.reader import StateReader
from millpond.state.spi import Cells, StateDescriptor, StateKind, Ttl
from millpond.state.testing.harness import Harness
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer

NUMBER = pa.schema([("n", pa.int64())])
KEY = pa.schema([("user", pa.string())])
ROWS = {
    kind: StateDescriptor("state", kind, NUMBER, NUMBER if kind is StateKind.MAP else None, ttl=Ttl(10))
    for kind in StateKind
}
OBJECTS = {
    kind: StateDescriptor(
        "state", kind, OBJECT_SCHEMA, NUMBER if kind is StateKind.MAP else None, msgspec_serializer(int), Ttl(10)
    )
    for kind in StateKind
}
SINCE = st.integers(0, 30)


@given(st.sampled_from([ROWS, OBJECTS]), st.sampled_from(StateKind), st.data(), st.integers(0, 45))
def test_living_rows_are_those_that_a_full_checkpoint_keeps(states, kind, data, now_ms):
    descriptor = states[kind]
    lives = data.draw(st.lists(st.lists(SINCE, max_size=4) if kind is StateKind.LIST else SINCE, max_size=6))
    value = (lambda at: ((at,), at)) if states is ROWS else (lambda at: (at, at))
    count = len(lives)
    cells = Cells(
        [3] * count,
        [(f"user {at}",) for at in range(count)],
        [(at,) for at in range(count)] if kind is StateKind.MAP else None,
        [[value(at) for at in life] if kind is StateKind.LIST else value(life) for life in lives],
    )
    codec = CellCodec(descriptor, KEY)
    table = codec.table(cells)
    found = living_rows(table.drop_columns(["deleted"]), descriptor, now_ms)
    deleted = pa.repeat(pa.scalar(False), found.num_rows)
    assert found.schema == table.drop_columns(["deleted"]).schema
    assert codec.cells(found.append_column("deleted", deleted)) == alive(cells, descriptor.ttl, now_ms)


def test_a_version_without_a_processing_time_is_given_whole():
    table = CellCodec(ROWS[StateKind.VALUE], KEY).table(Cells([3], [("ann",)], None, [((1,), 0)]))
    assert living_rows(table, ROWS[StateKind.VALUE], -1) is table


class Visits:
    """A value, a list and a map that live for 10 ms."""

    clean_up = ("snapshot",)

    def open(self, states):
        ttl = Ttl(10, clean_up=self.clean_up)
        self.last = states.value("last", int, ttl=ttl)
        self.log = states.list("log", int, ttl=ttl)
        self.pages = states.map("pages", str, int, ttl=ttl)

    def process(self, key, record, context):
        self.last.update(record[1])
        self.log.append(record[1])
        self.pages.put(f"/{record[1]}", record[1])


@pytest.mark.parametrize("clean_up", [("snapshot",), ("compaction",), ("incremental",), ()])
def test_savepoints_and_readers_give_what_a_full_checkpoint_holds(clean_up, tmp_path):
    operator = type("Visits", (Visits,), {"clean_up": clean_up})
    storage = tmp_path / "checkpoints"
    with Harness(operator, key=lambda record: record[0], key_type=str, storage=str(storage)) as harness:
        harness.process_many([("ann", 1), ("bob", 2)])
        harness.advance_processing_time(6)
        harness.process(("ann", 3))
        harness.checkpoint()
        harness.advance_processing_time(12)
        harness.savepoint(str(tmp_path / "live"))
        harness.checkpoint()
        delta = StateReader(str(storage))
        newest = delta.versions()[-1]
        delta.savepoint(str(tmp_path / "stored"))
        harness.checkpoint(full=True)
        full = StateReader(str(storage))
        for name in ("last", "log", "pages"):
            expected = _sorted(full.arrow(name))
            assert _sorted(delta.arrow(name, newest)) == expected
            for savepoint in ("live", "stored"):
                assert _sorted(StateReader(str(tmp_path / savepoint)).arrow(name)) == expected
        users = set(full.arrow("last")["key.key"].to_pylist())
        assert users == ({"ann"} if {"snapshot", "compaction"} & set(clean_up) else {"ann", "bob"})


def _sorted(table):
    return sorted(map(str, table.to_pylist()))
