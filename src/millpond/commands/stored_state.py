"""Stored state for `millpond state`: in a query's checkpoint, in the checkpoints of a harness, or in a savepoint.

A query's checkpoint is read with Spark, the others without.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from millpond.errors import CorruptionError, MillpondError, OptionError, UnavailableError
from millpond.masking import masked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from millpond.state.checkpoint import Savepoint
    from millpond.state.checkpoint.reader import StateReader

_QUERY_FOLDERS = {"offsets", "commits"}
_OUR_ERROR = re.compile(r"millpond\.errors\.(\w+): (.*)")


@dataclass(frozen=True)
class Asked:
    """Which part of stored state is meant.

    Attributes:
        state: the name of a state; None for the timers.
        operator: the operator's id, in a query with several.
        version: the version; None for the newest.
        since: for a comparison, the earlier version.
    """

    state: str | None
    operator: int | None = None
    version: int | None = None
    since: int | None = None


class Rows(Protocol):
    """Rows that are computed when they are asked for."""

    def first(self, count: int | None) -> "pa.Table":
        """The first rows, or all."""
        ...

    def write(self, path: str) -> int:
        """Write all rows as Parquet; how many there are."""
        ...


class StoredState(Protocol):
    """Stored state at one location."""

    def states(self) -> list[dict[str, Any]]:
        """A record for each state."""
        ...

    def rows(self, asked: Asked) -> Rows:
        """A state, or what changed of it."""
        ...

    def savepoint(self, location: str, operator: int | None, version: int | None) -> "Savepoint":
        """Write a savepoint."""
        ...


def is_query(location: str) -> bool:
    """Whether this is a query's checkpoint. An OptionError says that there is no stored state."""
    from millpond.state.checkpoint.savepoint import MANIFEST
    from millpond.state.checkpoint.storage.folder import Folder

    try:
        folder = Folder(location)
        folders, files = set(folder.folders()), folder.sizes(".")
    except (MillpondError, OSError):
        if "://" in location:
            return True  # Spark knows file systems that pyarrow does not
        raise
    if MANIFEST in files or any(re.fullmatch(r"shard-\d+", name) for name in folders):
        return False
    if folders >= _QUERY_FOLDERS:
        return True
    raise OptionError(
        f"{masked(location)} has no stored state. Expected a query's checkpointLocation (with the folders offsets and "
        f"commits), the checkpoints of a harness (shard-00000, …) or a savepoint ({MANIFEST})."
    )


def stored_state(location: str, session: "Callable[[], SparkSession]", seal: bytes | None = None) -> StoredState:
    """The stored state at a location, sealed with a key or not. A session is made only where Spark is needed."""
    if is_query(location):
        return _OfQuery(session(), location, seal)
    from millpond.state.checkpoint.reader import StateReader

    return _OfFiles(location, StateReader(location, seal=seal))


class _OfQuery:
    """The states of a query's operators."""

    def __init__(self, spark: "SparkSession", location: str, seal: bytes | None) -> None:
        from millpond.spark.inspect.reading_session import reading_session

        self._spark = reading_session(spark, location)
        self._location = location
        self._seal = seal

    def states(self) -> list[dict[str, Any]]:
        from millpond.spark.inspect.query_operators import query_operators
        from millpond.spark.inspect.stored_operator import StoredOperator

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

    def rows(self, asked: Asked) -> Rows:
        from millpond.spark import read_state

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

    def savepoint(self, location: str, operator: int | None, version: int | None) -> "Savepoint":
        from millpond.spark import savepoint

        return savepoint(self._spark, self._location, location, operator=operator, version=version, seal=self._seal)


class _FrameRows:
    """The rows of a DataFrame."""

    def __init__(self, location: str, frame: "DataFrame") -> None:
        self._location = location
        self._frame = frame

    def first(self, count: int | None) -> "pa.Table":
        frame = self._frame if count is None else self._frame.limit(count)
        found: pa.Table = self._run(frame.toArrow)
        return found

    def write(self, path: str) -> int:
        self._run(lambda: self._frame.write.parquet(path))
        rows: int = self._frame.sparkSession.read.parquet(path).count()
        return rows

    def _run(self, action: Callable[[], Any]) -> Any:
        from pyspark.errors import PySparkException

        try:
            return action()
        except PySparkException as error:
            ours = _OUR_ERROR.search(str(error))
            if ours is not None:
                kind = CorruptionError if ours[1] == CorruptionError.__name__ else UnavailableError
                raise kind(ours[2]) from error
            raise UnavailableError(f"{self._location}: {str(error).partition(chr(10))[0]}") from error


class _OfFiles:
    """The states of a harness's checkpoints, or of a savepoint."""

    def __init__(self, location: str, reader: "StateReader") -> None:
        self._location = location
        self._reader = reader

    def states(self) -> list[dict[str, Any]]:
        versions = self._reader.versions()
        about = {"versions": f"{versions[0]}-{versions[-1]}" if versions else None}
        return [{**about, "state": state.name, "declared": state.describe()} for state in self._reader.states()]

    def rows(self, asked: Asked) -> Rows:
        self._refuse_operator(asked.operator)
        name = self._name(asked)
        if asked.since is None:
            return _TableRows(self._reader.arrow(name, asked.version))
        newest = (self._reader.versions() or [asked.since])[-1]
        return _TableRows(self._reader.diff(name, asked.since, newest if asked.version is None else asked.version))

    def savepoint(self, location: str, operator: int | None, version: int | None) -> "Savepoint":
        self._refuse_operator(operator)
        return self._reader.savepoint(location, version)

    def _name(self, asked: Asked) -> str:
        from millpond.state.operator.timers import TIMER_STATES

        if asked.state is not None:
            return asked.state
        known = [state.name for state in self._reader.states(asked.version) if state.name in TIMER_STATES]
        if not known:
            raise OptionError(f"{self._location} has no timers.")
        return known[0]

    def _refuse_operator(self, operator: int | None) -> None:
        if operator is not None:
            raise OptionError(
                f"--operator {operator}: {self._location} has the state of one operator. Leave the option out."
            )


class _TableRows:
    """The rows of an Arrow table."""

    def __init__(self, table: "pa.Table") -> None:
        self._table = table

    def first(self, count: int | None) -> "pa.Table":
        return self._table.slice(0, count)

    def write(self, path: str) -> int:
        import pyarrow.parquet as pq

        if Path(path).exists():
            raise OptionError(f"{path} exists already. Name a file that does not.")
        try:
            pq.write_table(self._table, path)
        except OSError as error:
            raise UnavailableError(f"{path} could not be written: {error}.") from error
        rows: int = self._table.num_rows
        return rows
