"""Read the stored state in a query's checkpoint with Spark, for `millpond state` and the page."""

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import CorruptionError, UnavailableError
from millpond.spark.inspect.query_operators import query_operators
from millpond.spark.inspect.read_state import read_state
from millpond.spark.inspect.reading_session import reading_session
from millpond.spark.inspect.savepoints import savepoint
from millpond.spark.inspect.stored_operator import StoredOperator
from millpond.state.checkpoint import Savepoint
from millpond.state.checkpoint.stored_state import Asked, Rows, Sizes, summed_sizes

_OUR_ERROR = re.compile(r"millpond\.errors\.(\w+): (.*)")


class QueryState:
    """A `StoredState` over the states of a query's operators."""

    kind = "query"

    def __init__(self, spark: SparkSession, location: str, seal: bytes | None = None) -> None:
        self._spark = reading_session(spark, location)
        self._location = location
        self._seal = seal

    def states(self) -> list[dict[str, Any]]:
        """Return a record for each state of each operator."""
        records = []
        for operator in query_operators(self._spark, self._location):
            about = {
                "operator": operator.id,
                "name": "keyed" if operator.is_keyed else operator.name,
                "versions": f"{operator.first}-{operator.last}",
                "partitions": operator.partitions,
            }
            if operator.is_keyed:
                stored = StoredOperator.open(self._spark, self._location, operator.id, None, self._seal)
                records += [{**about, "state": state.name, "declared": state.describe()} for state in stored.states]
                continue
            variables = operator.properties.get("stateVariables", ())
            records += [
                {
                    **about,
                    "state": variable["stateName"],
                    "declared": f"{variable['stateVariableType']}{', with a TTL' if variable['ttlEnabled'] else ''}",
                }
                for variable in variables
            ] or [{**about, "state": None, "declared": None}]
        return records

    def sizes(self) -> Sizes:
        """Return rows and bytes by operator and state, for the keyed operators."""
        keyed = [operator.id for operator in query_operators(self._spark, self._location) if operator.is_keyed]
        opened = [StoredOperator.open(self._spark, self._location, operator, None, self._seal) for operator in keyed]
        return summed_sizes(
            (operator.operator, ref.state, ref.rows, ref.bytes)
            for operator in opened
            for manifest in operator.manifests.values()
            for ref in manifest.segments
        )

    def rows(self, asked: Asked) -> Rows:
        """Return the rows of a state, or its changes since an earlier version."""
        frame = read_state(
            self._spark,
            self._location,
            asked.state,
            operator=asked.operator,
            version=asked.version,
            since=asked.since,
            timers=asked.state is None,
            seal=self._seal,
        )
        return _FrameRows(self._location, frame)

    def savepoint(self, location: str, operator: int | None, version: int | None) -> Savepoint:
        """Write a savepoint."""
        return savepoint(self._spark, self._location, location, operator=operator, version=version, seal=self._seal)


class _FrameRows:
    """The rows of a DataFrame."""

    def __init__(self, location: str, frame: DataFrame) -> None:
        self._location = location
        self._frame = frame

    def first(self, count: int | None, search: str = "") -> pa.Table:
        frame = self._frame
        if search:
            keys = [name for name in ("key", "user_map_key") if name in frame.columns]
            texts = [F.lower(F.to_json(F.struct(name))) for name in keys]
            frame = frame.where(F.concat(*texts).contains(search.lower()))
        frame = frame if count is None else frame.limit(count)
        found: pa.Table = self._run(frame.toArrow)
        return found

    def write(self, path: str) -> int:
        self._run(lambda: self._frame.write.parquet(path))
        rows: int = self._frame.sparkSession.read.parquet(path).count()
        return rows

    def _run(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except PySparkException as error:
            ours = _OUR_ERROR.search(str(error))
            if ours is not None:
                kind = CorruptionError if ours[1] == CorruptionError.__name__ else UnavailableError
                raise kind(ours[2]) from error
            raise UnavailableError(f"{self._location}: {str(error).partition(chr(10))[0]}") from error
