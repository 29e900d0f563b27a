"""Reading checkpoints and savepoints as Arrow, pandas and DuckDB, and what changed between versions."""

from dataclasses import dataclass

import pyarrow as pa
import pytest

from millpond.errors import CorruptionError, OptionError
from millpond.state.checkpoint import Checkpointer, FileStorage, ShardState, new_manifest, write_savepoint
from millpond.state.checkpoint.reader import StateReader
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer, pickle_serializer

KEY = pa.schema([("user", pa.string())])
NUMBER = pa.schema([("number", pa.float64())])


@dataclass
class User:
    name: str
    visits: dict[str, int]


STATES = {
    "count": StateDescriptor("count", StateKind.VALUE, NUMBER),
    "visits": StateDescriptor("visits", StateKind.MAP, NUMBER, pa.schema([("page", pa.string())])),
    "log": StateDescriptor("log", StateKind.LIST, NUMBER),
    "age": StateDescriptor("age", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int)),
    "profile": StateDescriptor("profile", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(dict)),
    "user": StateDescriptor("user", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(User)),
    "tuples": StateDescriptor(
        "tuples", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(dict[tuple[int, int], int])
    ),
    "mixed": StateDescriptor("mixed", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int | str)),
    "words": StateDescriptor("words", StateKind.LIST, OBJECT_SCHEMA, serializer=msgspec_serializer(str)),
    "pickled": StateDescriptor("pickled", StateKind.VALUE, OBJECT_SCHEMA, serializer=pickle_serializer()),
}


class Shard:
    def __init__(self, location, shard, shards=2, **options):
        self.manifest = new_manifest(f"lineage {shard}", shard, shards, 8, KEY)
        self.backend = HeapBackend(self.manifest.key_groups)
        make = {"value": self.backend.value_state, "list": self.backend.list_state, "map": self.backend.map_state}
        self.handles = {name: make[state.kind](state) for name, state in STATES.items()}
        storage = FileStorage(location, shard, **options)
        self.checkpointer = Checkpointer(storage, self.backend, self.manifest, STATES.values())

    def at(self, user):
        self.backend.enter(self.manifest.key_groups.start)
        self.backend.context.key = (user,)
        return self.handles

    def checkpoint(self):
        self.checkpointer.write(self.checkpointer.begin())


@pytest.fixture
def location(tmp_path):
    """Two shards, two versions."""
    ann, bob = Shard(str(tmp_path), 0), Shard(str(tmp_path), 1)
    for shard, user, number in ((ann, "ann", 1), (bob, "bob", 2)):
        state = shard.at(user)
        state["count"].update((float(number),))
        state["visits"].put(("/home",), (float("nan"),))
        state["visits"].put((f"/{user}",), (1.0,))
        state["log"].put([(1.0,), (None,)])
        state["age"].update(30 + number)
        state["profile"].update({"name": user})
        state["tuples"].update({(number, 0): 1})
        if user == "ann":
            state["user"].update(User(user, {"/ann": 1}))
        state["mixed"].update(number if user == "ann" else "two")
        state["words"].append(user)
        state["pickled"].update({user})
        shard.checkpoint()
    ann.at("ann")["count"].clear()
    ann.at("ann")["visits"].put(("/ann",), (2.0,))
    ann.at("eve")["count"].update((3.0,))
    ann.checkpoint()
    bob.at("bob")["visits"].remove(("/bob",))
    bob.at("bob")["age"].update(33)
    bob.checkpoint()
    return str(tmp_path)


def rows(table, *columns):
    return sorted(tuple(row[column] for column in columns) for row in table.to_pylist())


def test_a_state_is_read_from_all_shards_as_of_any_version(location):
    reader = StateReader(location)
    assert reader.versions() == [1, 2]
    assert {state.name for state in reader.states()} == set(STATES)
    assert rows(reader.arrow("count"), "key.user", "value.number") == [("bob", 2.0), ("eve", 3.0)]
    assert rows(reader.arrow("count", 1), "key.user", "value.number") == [("ann", 1.0), ("bob", 2.0)]
    assert reader.arrow("count").column_names == ["key_group", "key.user", "value.number"]
    assert rows(reader.arrow("visits"), "key.user", "map_key.page") == [
        ("ann", "/ann"),
        ("ann", "/home"),
        ("bob", "/home"),
    ]
    assert reader.arrow("log")["value"].to_pylist() == [[{"number": 1.0}, {"number": None}]] * 2


def test_objects_become_plain_columns(location):
    reader = StateReader(location)
    age = reader.arrow("age")
    assert age.schema.field("value.value").type == pa.int64()
    assert rows(age, "key.user", "value.value") == [("ann", 31), ("bob", 33)]
    assert reader.arrow("profile").schema.field("value.value").type == pa.map_(pa.string(), pa.string())
    user = reader.arrow("user")
    assert user.schema.field("value.value").type == pa.struct(
        [("name", pa.string()), ("visits", pa.map_(pa.string(), pa.int64()))]
    )
    assert rows(user, "value.value") == [({"name": "ann", "visits": [("/ann", 1)]},)]
    assert rows(reader.arrow("mixed"), "key.user", "value.value") == [("ann", "1"), ("bob", '"two"')]
    assert rows(reader.arrow("words"), "value") == [(["ann"],), (["bob"],)]
    assert reader.arrow("pickled").schema.field("value.value").type == pa.binary()


def test_pandas_and_duckdb_see_the_same(location):
    reader = StateReader(location)
    frame = reader.pandas("count").sort_values("key.user")
    assert list(frame["value.number"]) == [2.0, 3.0]
    assert reader.duckdb("age").aggregate('sum("value.value")').fetchall() == [(64,)]


def test_maps_are_dicts_in_pandas_and_maps_in_duckdb(location):
    reader = StateReader(location)
    assert sorted(reader.pandas("profile")["value.value"], key=str) == [{"name": "ann"}, {"name": "bob"}]
    assert list(reader.pandas("user")["value.value"]) == [{"name": "ann", "visits": {"/ann": 1}}]
    assert sorted(reader.duckdb("profile").project("\"value.value\"['name']").fetchall()) == [("ann",), ("bob",)]
    keys = [[list(key) for key, _ in pairs] for pairs in reader.pandas("tuples")["value.value"]]
    assert sorted(keys) == [[[1, 0]], [[2, 0]]], "what is a list in Arrow is no key of a dict"


def test_a_diff_tells_what_was_added_removed_and_changed(location):
    reader = StateReader(location)
    count = reader.diff("count", 1, 2)
    assert count.column_names == ["change", "key_group", "key.user", "old.number", "new.number"]
    assert rows(count, "change", "key.user", "old.number", "new.number") == [
        ("added", "eve", None, 3.0),
        ("removed", "ann", 1.0, None),
    ]
    assert rows(reader.diff("visits", 1, 2), "change", "key.user", "map_key.page", "old.number", "new.number") == [
        ("changed", "ann", "/ann", 1.0, 2.0),
        ("removed", "bob", "/bob", 1.0, None),
    ]
    assert rows(reader.diff("age", 1, 2), "change", "old.value", "new.value") == [("changed", 32, 33)]
    assert reader.diff("log", 1, 2).num_rows == 0
    assert rows(reader.diff("count", 2, 1), "change", "key.user") == [("added", "ann"), ("removed", "eve")]


def test_a_savepoint_is_read_like_a_checkpoint(location, tmp_path):
    parts = [ShardState.of_storage(FileStorage(location, shard, read_only=True)) for shard in (0, 1)]
    write_savepoint(str(tmp_path / "savepoint"), parts)
    checkpoint, savepoint = StateReader(location), StateReader(str(tmp_path / "savepoint"))
    for name in STATES:
        assert savepoint.arrow(name).equals(checkpoint.arrow(name)) or name == "visits"
    assert rows(savepoint.arrow("visits"), "key.user", "map_key.page") == rows(
        checkpoint.arrow("visits"), "key.user", "map_key.page"
    )
    assert savepoint.versions() == []
    with pytest.raises(OptionError, match="no versions"):
        savepoint.arrow("count", 1)
    with pytest.raises(OptionError, match="no versions to compare"):
        savepoint.diff("count", 1, 2)


def test_reading_disturbs_no_writer(location):
    shard = FileStorage(location, 0)
    manifest = shard.manifest()
    StateReader(location).arrow("count")
    backend = HeapBackend(manifest.key_groups)
    checkpointer = Checkpointer(shard, backend, manifest, STATES.values())
    assert checkpointer.write(checkpointer.begin()).version == 3


def test_what_is_not_there_is_named(location, tmp_path):
    reader = StateReader(location)
    with pytest.raises(OptionError, match=r"no state 'cuont'; it has .*'count'"):
        reader.arrow("cuont")
    with pytest.raises(OptionError, match=r"not version 7 of every shard; it has \[1, 2\]"):
        reader.arrow("count", 7)
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match="neither checkpoints"):
        StateReader(str(tmp_path / "empty"))


def test_a_missing_shard_is_noticed(location, tmp_path):
    (tmp_path / "shard-00001").rename(tmp_path / "elsewhere")
    with pytest.raises(CorruptionError, match="holds 1 shards of an operator that has 2"):
        StateReader(location).arrow("count")
