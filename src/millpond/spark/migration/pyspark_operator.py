"""Read the state of one of PySpark's own operators from its checkpoint, through Spark's state data source.

Spark shows values, list elements, map entries, timers, and when a value expires. It does not show

- the length of a state's time to live, only the moment at which each value expires;
- whether the timeouts of `applyInPandasWithState` are in event time or in processing time.

The caller must pass these. An error is raised for what cannot be migrated: the states of Spark's other
operators, and keys of types that Millpond does not support.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millpond.errors import CorruptionError, DataError, OptionError
from millpond.masking import masked
from millpond.spark.forms.handles import arrow_schema
from millpond.spark.inspect.query_operators import QueryOperator, described, query_operators
from millpond.spark.inspect.reading_session import reading_session
from millpond.spark.operator.key_columns import key_columns, quoted
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.timer_states import PROCESSING_TIMERS, TIMERS
from millpond.state.types.ttl import Ttl
from millpond.suggestions import did_you_mean

_GROUP_STATE_OPERATOR = "applyInPandasWithState"
_OPERATORS = ("transformWithStateInPySparkExec", "transformWithStateInPandasExec", _GROUP_STATE_OPERATOR)
_KINDS = {"ValueState": StateKind.VALUE, "ListState": StateKind.LIST, "MapState": StateKind.MAP}
_TIMERS = {"eventtime": TIMERS, "processingtime": PROCESSING_TIMERS}
_STATE_NAME = "state"


class _BatchTimes(msgspec.Struct):
    """A batch's entry in a query's offset log."""

    watermark_ms: int = msgspec.field(name="batchWatermarkMs")
    timestamp_ms: int = msgspec.field(name="batchTimestampMs")


@dataclass(frozen=True)
class PySparkState:
    """One state of an operator.

    Attributes:
        descriptor: its declaration in Millpond.
        rows: its rows: `key`, and then `value`, or `list_value`, or `user_map_key` and `user_map_value`, or
            `expiration_timestamp_ms`, as Spark's state data source names them. With a TTL, values are structs of
            `value` and `ttlExpirationMs`.
    """

    descriptor: StateDescriptor
    rows: DataFrame


@dataclass(frozen=True)
class PySparkOperator:
    """One operator of PySpark's at one committed batch of its query.

    Attributes:
        spark: the session that reads.
        location: the query's checkpoint.
        operator: its entry in the query's metadata.
        version: the batch.
        watermark_ms: the watermark of that batch.
        timestamp_ms: the processing time of that batch.
    """

    spark: SparkSession
    location: str
    operator: QueryOperator
    version: int
    watermark_ms: int
    timestamp_ms: int

    @staticmethod
    def open(spark: SparkSession, location: str, operator: int | None, version: int | None) -> "PySparkOperator":
        """Find the operator.

        Raises:
            OptionError: there is no such checkpoint, operator or version, or the operator is not PySpark's.
            CorruptionError: the checkpoint has lost the record of the batch.
        """
        spark = reading_session(spark, location)
        found = _found(spark, location, operator)
        version = found.version(version, location)
        times = _batch_times(spark, location, version)
        return PySparkOperator(spark, location, found, version, times.watermark_ms, times.timestamp_ms)

    def states(
        self, ttl_ms: Mapping[str, int], group_state: str | None = None, time_mode: str | None = None
    ) -> list[PySparkState]:
        """Return every state of the operator, with its timers last.

        Args:
            ttl_ms: the time to live in ms of each state that has one, by the state's name.
            group_state: for `applyInPandasWithState`, the new name of its state.
            time_mode: for `applyInPandasWithState` with timeouts, the time mode of the timeouts.

        Raises:
            OptionError: an argument is missing, or does not belong to this operator.
            DataError: the state is in a form that cannot be read.
        """
        if self.operator.name == _GROUP_STATE_OPERATOR:
            if ttl_ms:
                raise OptionError(
                    f"ttl_ms names {sorted(ttl_ms)}; the state of applyInPandasWithState has no time to live. "
                    "Leave ttl_ms out."
                )
            return self._group_state(group_state or _STATE_NAME, time_mode)
        for option, given in (("group_state", group_state), ("time_mode", time_mode)):
            if given is not None:
                raise OptionError(
                    f"{option}={given!r} is for the state of applyInPandasWithState; operator {self.operator.id} of "
                    f"{self.location} is {self.operator.name}, whose checkpoint tells it. Leave it out."
                )
        return self._declared_states(ttl_ms)

    def key_schema(self, rows: DataFrame) -> StructType:
        """Return the key columns of a state's rows. A DataError names one that cannot be a key of `keyed`."""
        keys = rows.select("key.*")
        return key_columns(keys, [quoted(name) for name in keys.columns]).schema

    def _declared_states(self, ttl_ms: Mapping[str, int]) -> list[PySparkState]:
        variables = {each["stateName"]: each for each in self.operator.properties.get("stateVariables", ())}
        kinds = {name: _KINDS[each["stateVariableType"]] for name, each in variables.items() if _is_state(each)}
        self._check_ttl(ttl_ms, kinds, {name for name in kinds if variables[name]["ttlEnabled"]})
        states = [self._declared_state(name, kinds[name], ttl_ms.get(name)) for name in sorted(kinds)]
        timers = _TIMERS.get(str(self.operator.properties.get("timeMode", "")).lower())
        if timers is not None:
            states.append(PySparkState(timers, self._read(readRegisteredTimers="true")))
        if not states:
            raise OptionError(
                f"operator {self.operator.id} of {self.location} declares no states and sets no timers, so there is "
                "nothing to import. Start the query without a savepoint."
            )
        return states

    def _check_ttl(self, ttl_ms: Mapping[str, int], known: Mapping[str, StateKind], with_ttl: set[str]) -> None:
        for name in sorted(ttl_ms.keys() - with_ttl):
            has = "has no time to live" if name in known else "does not exist"
            raise OptionError(
                f"ttl_ms names state {name!r}, which {has} in operator {self.operator.id} of {self.location}; states "
                f"with one are {sorted(with_ttl)}{did_you_mean(name, with_ttl) or '.'}"
            )
        missing = sorted(with_ttl - ttl_ms.keys())
        if missing:
            example = ", ".join(f"{name!r}: 3_600_000" for name in missing)
            options = " ".join(f"--ttl {name}=3600000" for name in missing)
            raise OptionError(
                f"the states {missing} of {self.location} have a time to live. Spark shows when each value expires, "
                "and not how long it lives. Say it in milliseconds, as the processor declares it: "
                f"ttl_ms={{{example}}}, or {options} for the command."
            )

    def _declared_state(self, name: str, kind: StateKind, ttl_ms: int | None) -> PySparkState:
        options = {"flattenCollectionTypes": "false"} if kind is StateKind.LIST else {}
        rows = self._read(stateVarName=name, **options)
        column = {StateKind.VALUE: "value", StateKind.LIST: "list_value", StateKind.MAP: "user_map_value"}[kind]
        stored = rows.schema[column].dataType
        schema = stored.elementType if kind is StateKind.LIST else stored
        descriptor = StateDescriptor(
            name=name,
            kind=kind,
            value_schema=arrow_schema(schema if ttl_ms is None else schema["value"].dataType),
            map_key_schema=arrow_schema(rows.schema["user_map_key"].dataType) if kind is StateKind.MAP else None,
            ttl=None if ttl_ms is None else Ttl.of(ttl_ms),
        )
        return PySparkState(descriptor, rows)

    def _group_state(self, name: str, time_mode: str | None) -> list[PySparkState]:
        rows = self._read()
        value = rows.schema["value"].dataType
        if "groupState" not in value.names:
            raise DataError(
                f"{self.location} holds the state of applyInPandasWithState in the form of Spark 2.3 "
                "(spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion 1), which cannot be told from its "
                "timeouts. Start the job on a new checkpoint without state."
            )
        descriptor = StateDescriptor(name, StateKind.VALUE, arrow_schema(value["groupState"].dataType))
        state = rows.where("value.groupState IS NOT NULL").select("key", F.col("value.groupState").alias("value"))
        states = [PySparkState(descriptor, state)]
        if "timeoutTimestamp" not in value.names:
            if time_mode is not None:
                raise OptionError(
                    f"time_mode={time_mode!r}: the query in {self.location} has no timeouts. Leave it out."
                )
            return states
        timers = _TIMERS.get(str(time_mode).lower())
        if timers is None:
            raise OptionError(
                f"time_mode={time_mode!r}: the query in {self.location} has timeouts, and its checkpoint does not tell "
                "of which time. Say 'EventTime' for GroupStateTimeout.EventTimeTimeout, 'ProcessingTime' for "
                "GroupStateTimeout.ProcessingTimeTimeout (--time-mode of the command)."
            )
        # Spark fires a timeout once time has passed it, and a timer as soon as time has reached it.
        expiry = (F.col("value.timeoutTimestamp") + 1).alias("expiration_timestamp_ms")
        return [*states, PySparkState(timers, rows.where("value.timeoutTimestamp >= 0").select("key", expiry))]

    def _read(self, **options: str) -> DataFrame:
        reader = self.spark.read.format("statestore").options(operatorId=self.operator.id, batchId=self.version)
        return reader.options(**options).load(self.location)


def _is_state(variable: Mapping[str, str]) -> bool:
    """Whether a variable is a user's state. The others are Spark's timers."""
    return variable["stateVariableType"] in _KINDS and not variable["stateName"].startswith("$")


def _found(spark: SparkSession, location: str, operator: int | None) -> QueryOperator:
    operators = query_operators(spark, location)
    fitting = {each.id: each for each in operators if each.name in _OPERATORS and not each.is_keyed}
    keyed = [each for each in operators if each.is_keyed]
    others = [each for each in operators if each.id not in fitting]
    if operator is None and len(fitting) == 1:
        return next(iter(fitting.values()))
    if operator in fitting:
        return fitting[operator]
    if keyed and (not fitting or operator in {each.id for each in keyed}):
        raise OptionError(
            f"{masked(location)}, operator {keyed[0].id if operator is None else operator}: its state is "
            "Millpond's already. "
            "Write a savepoint of it with millpond.spark.savepoint()."
        )
    if not fitting:
        raise OptionError(
            f"{masked(location)} has no operator whose state can be imported: its stateful operators are "
            f"{described(others)}. "
            "PySpark's transformWithState, transformWithStateInPandas and applyInPandasWithState are."
        )
    asked = "several operators whose state can be imported" if operator is None else f"no such operator {operator}"
    raise OptionError(
        f"{masked(location)} has {asked}; say which with operator=, or --operator of the command, "
        f"one of {described(list(fitting.values()))}"
        f"{f'. It also has {described(others)}, which cannot be imported' if others else ''}."
    )


def _batch_times(spark: SparkSession, location: str, version: int) -> _BatchTimes:
    """Read the batch's times from the offset log: a version line, a line of JSON with the times, and the offsets."""
    log = f"{location.rstrip('/')}/offsets/{version}"
    try:
        lines = [row.value for row in spark.read.text(log).collect()]
        return msgspec.json.decode(lines[1], type=_BatchTimes)
    except (PySparkException, IndexError, msgspec.MsgspecError) as error:
        raise CorruptionError(
            f"{log}, in which Spark keeps the times of batch {version}, cannot be read: {error}. Restore the "
            "checkpoint, or ask for another version."
        ) from error
