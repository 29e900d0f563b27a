"""The handle that user code sees has PySpark's names, and gives back what was put, in PySpark's forms."""

import datetime as dt
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
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
from millpond.spark.forms.handles import DeletedStateError, ProcessorHandle
from millpond.state.checkpoint import Shard, new_manifest
from millpond.state.spi import HeapBackend

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
    return Shard(new_manifest("lineage", 0, 1, 1, pa.schema([("user", pa.string())])), HeapBackend(range(1)))


def _entered(shard):
    shard.backend.enter(0)
    shard.backend.context.key = ("ann",)


def _handle(shard, ddl=None):
    return ProcessorHandle(shard, "none", (ddl or {}).__getitem__)


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


def test_pandas_and_numpy_values_come_back_as_pythons(zone):
    """What a processor takes out of a DataFrame, as PySpark takes it too."""
    shard = _shard()
    handle = _handle(shard)
    at, number = handle.getValueState("at", TIME), handle.getValueState("number", NUMBER)
    _entered(shard)
    moment = pd.Timestamp("2013-07-01 12:30")
    for given in (moment, moment.tz_localize(zone)):
        at.update((given,))
        assert at.get() == (dt.datetime(2013, 7, 1, 12, 30),)  # noqa: DTZ001
    at.update((pd.NaT,))
    assert at.get() == (None,)
    number.update((np.int32(7),))
    assert (number.get(), type(number.get()[0])) == ((7,), int)


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


def _timed(shard):
    return ProcessorHandle(shard, "processingtime", {}.__getitem__)


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_a_ttl_hides_what_has_expired_and_a_write_begins_a_new_life(kind):
    shard = _shard()
    handle = _timed(shard)
    state = {
        "value": lambda: handle.getValueState("s", NUMBER, 100),
        "list": lambda: handle.getListState("s", NUMBER, 100),
        "map": lambda: handle.getMapState("s", PAGE, NUMBER, 100),
    }[kind]()
    write = {
        "value": lambda: state.update((1,)),
        "list": lambda: state.put([(1,)]),
        "map": lambda: state.updateValue(("/a",), (1,)),
    }[kind]
    _entered(shard)
    shard.backend.context.now_ms = 1000
    write()
    shard.backend.context.now_ms = 1099
    assert state.exists()
    write()
    shard.backend.context.now_ms = 1198
    assert state.exists(), "a read does not matter, and the write at 1099 did"
    shard.backend.context.now_ms = 1199
    assert not state.exists()
    seen = {"value": "get", "list": "get", "map": "iterator"}[kind]
    assert not list(getattr(state, seen)() or ())


def test_elements_of_a_list_and_entries_of_a_map_expire_each_alone():
    shard = _shard()
    handle = _timed(shard)
    log, last = handle.getListState("log", NUMBER, 100), handle.getMapState("last", PAGE, NUMBER, 100)
    _entered(shard)
    for now_ms in (0, 60):
        shard.backend.context.now_ms = now_ms
        log.appendValue((now_ms,))
        last.updateValue((f"/{now_ms}",), (now_ms,))
    shard.backend.context.now_ms = 100
    assert list(log.get()) == [(60,)]
    assert list(last.keys()) == [("/60",)]
    assert (last.containsKey(("/0",)), last.getValue(("/0",))) == (False, None)


def test_a_ttl_of_zero_is_none_as_in_pyspark():
    shard = _shard()
    _handle(shard).getValueState("v", NUMBER, 0)
    assert "ttl" not in shard.commit("t").manifest.states[0]


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1000"])
def test_a_ttl_that_is_no_duration_is_refused_by_the_states_name(wrong):
    with pytest.raises(OptionError, match=f"state 'v': ttlDurationMs={wrong!r}; expected a whole number of ms"):
        _timed(_shard()).getValueState("v", NUMBER, wrong)


@pytest.mark.parametrize(("mode", "named"), [("none", "None"), ("eventtime", "EventTime")])
def test_a_ttl_is_refused_outside_processing_time_as_in_pyspark(mode, named):
    handle = ProcessorHandle(_shard(), mode, {}.__getitem__)
    with pytest.raises(OptionError, match=f"state 'v': ttlDurationMs=1000 needs timeMode 'ProcessingTime'.*'{named}'"):
        handle.getMapState("v", PAGE, NUMBER, 1000)


def test_the_value_of_a_maps_entry_has_names_as_in_pyspark():
    shard = _shard()
    state = _handle(shard).getMapState("visits", PAGE, NUMBER)
    _entered(shard)
    state.updateValue(("/a",), (1,))
    found = state.getValue(("/a",))
    assert (found, found.count, repr(found)) == ((1,), found.count, "Row(count=1)")
    assert found["count"] == 1
    assert type(next(state.values())) is tuple


def test_an_empty_list_is_refused_as_in_pyspark():
    shard = _shard()
    state = _handle(shard).getListState("log", NUMBER)
    _entered(shard)
    for write in (state.put, state.appendList):
        with pytest.raises(DataError, match="state 'log': an empty list"):
            write([])
        write((number,) for number in range(2))
    assert list(state.get()) == [(0,), (1,), (0,), (1,)]


def test_a_state_declared_after_init_is_refused_as_in_pyspark():
    handle = _handle(_shard())
    handle.end_of_init()
    with pytest.raises(OptionError, match=r"state 'v': states are declared in init\(\)"):
        handle.getValueState("v", NUMBER)
    with pytest.raises(OptionError, match=r"state 'v': states are declared in init\(\)"):
        handle.deleteIfExists("v")


def test_deleting_a_state_forgets_it_for_every_key():
    shard = _shard()
    state = _handle(shard).getMapState("visits", PAGE, NUMBER)
    for user in ("ann", "bob"):
        shard.backend.enter(0)
        shard.backend.context.key = (user,)
        state.updateValue(("/a",), (1,))
    shard.commit("first")
    handle = _handle(shard)
    handle.deleteIfExists("visits")
    handle.deleteIfExists("never known")
    assert len(shard.backend.cells("visits", 0)) == 0
    again = handle.getMapState("visits", PAGE, NUMBER)
    _entered(shard)
    assert not again.exists()


def test_a_state_that_is_deleted_after_it_was_declared_is_not_there_as_in_pyspark():
    def declare(handle):
        made = [
            handle.getValueState("v", NUMBER),
            handle.getListState("l", NUMBER),
            handle.getMapState("m", PAGE, NUMBER),
        ]
        for name in "vlm":
            handle.deleteIfExists(name)
        return made

    planned = _handle(_shard())
    declare(planned)
    shard = _shard()
    value, log, visits = declare(ProcessorHandle(shard, "none", {}.__getitem__, planned.deleted))
    _entered(shard)
    for call in (value.exists, value.get, value.clear, log.exists, log.clear, visits.exists, visits.clear):
        with pytest.raises(DeletedStateError, match=r"state '.': init\(\) declared it and then deleted it"):
            call()
    for call in (value.update, log.put, log.appendValue, log.appendList, visits.getValue, visits.containsKey):
        with pytest.raises(PySparkRuntimeError):
            call((1,))
    with pytest.raises(OptionError):
        visits.updateValue(("/a",), (1,))
    assert [*log.get(), *visits.iterator(), *visits.keys(), *visits.values()] == []


def test_a_bare_value_is_taken_in_every_call_of_a_state_of_one_field():
    shard = _shard()
    handle = _handle(shard)
    value, log = handle.getValueState("v", TIME), handle.getListState("l", NUMBER)
    visits = handle.getMapState("m", PAGE, NUMBER)
    _entered(shard)
    noon = dt.datetime(2024, 7, 1, 12)  # noqa: DTZ001 - local, as PySpark's users have it
    value.update(noon)
    assert value.get() == (noon,)
    log.put([1, 2])
    log.appendValue(3)
    log.appendList([4])
    assert list(log.get()) == [(1,), (2,), (3,), (4,)]
    visits.updateValue("/a", 1)
    assert (visits.getValue("/a"), visits.containsKey("/a"), visits.containsKey("/")) == ((1,), True, False)
    visits.removeKey("/a")
    assert not visits.exists()
    for write in (log.put, log.appendList):
        with pytest.raises(DataError, match="expected a list of elements, got str 'ab'"):
            write("ab")


def test_a_timer_may_be_set_at_any_time_as_in_sparks_engine():
    shard = _shard()
    handle = ProcessorHandle(shard, "eventtime", {}.__getitem__)
    _entered(shard)
    for expiry_ms in (-5, 0, 7):
        handle.registerTimer(expiry_ms)
    assert [timer.expiry_ms for timer in shard.timers.due(0)] == [-5, 0]


@pytest.mark.parametrize("wrong", [1.5, "1000", None])
def test_a_timer_needs_a_whole_number_of_ms(wrong):
    shard = _shard()
    handle = _timed(shard)
    _entered(shard)
    with pytest.raises(OptionError, match="expected a whole number of ms"):
        handle.registerTimer(wrong)
    handle.registerTimer(np.int64(7))
    assert list(handle.listTimers()) == [7]


def test_a_schema_that_is_no_schema_is_refused():
    with pytest.raises(DataError, match="state 'v': its schema must be a StructType"):
        _handle(_shard()).getValueState("v", LongType())


def test_declaring_a_state_makes_it_known_to_the_checkpoint():
    shard = _shard()
    _handle(shard).getMapState("visits", PAGE, NUMBER)
    assert [plain["name"] for plain in shard.commit("t").manifest.states] == ["visits"]


def test_two_states_of_one_name_and_names_of_millponds_own_are_refused():
    handle = _handle(_shard())
    handle.getValueState("seen", NUMBER)
    with pytest.raises(OptionError, match=r"state 'seen'.*two states of that name"):
        handle.getValueState("seen", NUMBER)
    with pytest.raises(OptionError, match=r"state '\$timers'.*Millpond's own"):
        handle.getMapState("$timers", PAGE, NUMBER)
