"""The handle that user code sees has PySpark's names, and gives back what was put, in PySpark's forms."""

import datetime as dt
import time

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millpond.errors import DataError, OptionError
from millpond.spark.handles import ProcessorHandle
from millpond.spark.operator_spec import BatchTime
from millpond.state import HeapBackend
from millpond.state.checkpoint import Shard, birth

NUMBER = StructType([StructField("count", LongType())])
PAGE = StructType([StructField("page", StringType())])
TIME = StructType([StructField("at", TimestampType())])
NESTED = StructType(
    [
        StructField("at", TimestampType()),
        StructField(
            "tags", ArrayType(StructType([StructField("name", StringType()), StructField("at", TimestampType())]))
        ),
        StructField("times", MapType(StringType(), TimestampType())),
        StructField("plain", TimestampNTZType()),
    ]
)


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(request, monkeypatch):
    """Runs a test under a system time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def _shard():
    return Shard(birth("lineage", 0, 1, 1, pa.schema([("user", pa.string())])), HeapBackend(range(1)))


def _entered(shard):
    shard.backend.enter(0)
    shard.backend.context.key = ("ann",)


def _handle(shard, ddl=None):
    return ProcessorHandle(shard, "none", BatchTime(), (ddl or {}).__getitem__)


def test_a_value_state_is_used_as_in_pyspark():
    shard = _shard()
    state = _handle(shard, {"count long": NUMBER}).getValueState("count", "count long")
    _entered(shard)
    assert (state.exists(), state.get()) == (False, None)
    state.update((1,))
    assert (state.exists(), state.get()) == (True, (1,))
    state.clear()
    assert (state.exists(), state.get()) == (False, None)


def test_a_list_state_is_used_as_in_pyspark():
    shard = _shard()
    state = _handle(shard).getListState("log", NUMBER)
    _entered(shard)
    assert (state.exists(), list(state.get())) == (False, [])
    state.appendValue((1,))
    state.appendList([(2,), (3,)])
    assert (state.exists(), list(state.get())) == (True, [(1,), (2,), (3,)])
    state.put([(4,)])
    assert list(state.get()) == [(4,)]
    state.clear()
    assert not state.exists()


def test_a_map_state_is_used_as_in_pyspark():
    shard = _shard()
    state = _handle(shard).getMapState("visits", PAGE, NUMBER)
    _entered(shard)
    assert (state.exists(), state.getValue(("/a",)), state.containsKey(("/a",))) == (False, None, False)
    state.updateValue(("/a",), (1,))
    state.updateValue(("/b",), (2,))
    assert dict(state.iterator()) == {("/a",): (1,), ("/b",): (2,)}
    assert (sorted(state.keys()), sorted(state.values())) == ([("/a",), ("/b",)], [(1,), (2,)])
    state.removeKey(("/a",))
    assert (state.getValue(("/a",)), state.containsKey(("/b",)), state.exists()) == (None, True, True)
    state.clear()
    assert not state.exists()


MOMENTS = [
    dt.datetime(2013, 7, 1, 12, 30, 0, 123_456),  # noqa: DTZ001 - PySpark's users see local times without a zone
    dt.datetime(2013, 1, 1),  # noqa: DTZ001
    None,
]


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_a_local_time_put_into_state_comes_back_as_it_was(zone, moment):
    shard = _shard()
    handle = _handle(shard)
    value, several = handle.getValueState("v", TIME), handle.getListState("l", TIME)
    entries = handle.getMapState("m", TIME, TIME)
    _entered(shard)
    value.update((moment,))
    several.put([(moment,)])
    several.appendValue((moment,))
    several.appendList([(moment,)])
    entries.updateValue((moment,), (moment,))
    assert value.get() == (moment,)
    assert list(several.get()) == [(moment,)] * 3
    assert entries.getValue((moment,)) == (moment,)
    assert entries.containsKey((moment,))
    assert list(entries.iterator()) == [((moment,), (moment,))]
    entries.removeKey((moment,))
    assert not entries.exists()


def test_a_time_with_a_zone_comes_back_as_the_local_time_of_that_moment(zone):
    shard = _shard()
    state = _handle(shard).getValueState("v", TIME)
    _entered(shard)
    moment = dt.datetime(2013, 7, 1, 12, 30, tzinfo=dt.UTC)
    state.update((moment,))
    assert state.get() == (moment.astimezone().replace(tzinfo=None),)


def test_nested_times_and_rows_come_back_as_pyspark_gives_them(zone):
    shard = _shard()
    state = _handle(shard).getValueState("v", NESTED)
    _entered(shard)
    at = dt.datetime(2013, 7, 1, 12, 30)  # noqa: DTZ001
    tag = Row("name", "at")
    state.update((at, [tag("a", at), None], {"k": at, "n": None}, at))
    found = state.get()
    assert found == (at, [tag("a", at), None], {"k": at, "n": None}, at)
    assert found[1][0].name == "a"
    state.update(found)
    assert state.get() == found
    found[1].append("mine")
    assert len(state.get()[1]) == 2


def test_arrays_and_maps_are_made_anew_with_every_get_as_in_pyspark():
    """What is done to them without an update is never seen again, in the same batch either."""
    containers = StructType(
        [StructField("numbers", ArrayType(LongType())), StructField("counts", MapType(StringType(), LongType()))]
    )
    shard = _shard()
    handle = _handle(shard)
    value, several = handle.getValueState("v", containers), handle.getListState("l", containers)
    entries = handle.getMapState("m", PAGE, containers)
    _entered(shard)
    value.update(([1], {"a": 1}))
    several.put([([1], {"a": 1})])
    entries.updateValue(("/a",), ([1], {"a": 1}))
    reads = (value.get, lambda: next(several.get()), lambda: entries.getValue(("/a",)), lambda: next(entries.values()))
    for read in reads:
        numbers, counts = read()
        numbers.append(2)
        counts["b"] = 2
        assert read() == ([1], {"a": 1})
    value.update((None, None))
    assert value.get() == (None, None)


def test_a_ttl_is_refused_by_the_states_name():
    with pytest.raises(OptionError, match="state 'v': ttlDurationMs=1000"):
        _handle(_shard()).getValueState("v", NUMBER, 1000)


def test_a_schema_that_is_no_schema_is_refused():
    with pytest.raises(DataError, match="state 'v': its schema must be a StructType"):
        _handle(_shard()).getValueState("v", LongType())


def test_declaring_a_state_makes_it_known_to_the_checkpoint():
    shard = _shard()
    _handle(shard).getMapState("visits", PAGE, NUMBER)
    assert [plain["name"] for plain in shard.commit("t").head.states] == ["visits"]


def test_two_states_of_one_name_and_names_of_millponds_own_are_refused():
    handle = _handle(_shard())
    handle.getValueState("seen", NUMBER)
    with pytest.raises(OptionError, match=r"state 'seen'.*two states of that name"):
        handle.getValueState("seen", NUMBER)
    with pytest.raises(OptionError, match=r"state '\$timers'.*Millpond's own"):
        handle.getMapState("$timers", PAGE, NUMBER)
