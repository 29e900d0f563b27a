"""Stored state at one location, of any kind: checkpoints of a harness, a savepoint, or a query's checkpoint.

`millpond state` and the web page read it. The first two kinds are read here. A query's checkpoint needs Spark, and
`millpond.spark.inspect.query_state` reads it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.errors import MillpondError, OptionError, UnavailableError
from millpond.masking import masked
from millpond.state.checkpoint.reader import StateReader
from millpond.state.checkpoint.savepoint import MANIFEST, Savepoint
from millpond.state.checkpoint.storage.folder import Folder
from millpond.state.types.timer_states import TIMER_STATES

_QUERY_FOLDERS = {"offsets", "commits"}


@dataclass(frozen=True)
class Asked:
    """The part of stored state that is asked for.

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
    """Rows that are computed on request."""

    def first(self, count: int | None, search: str = "") -> pa.Table:
        """Return the first rows whose key contains a text, ignoring case; all of them if `count` is None."""

    def write(self, path: str) -> int:
        """Write all rows as Parquet. Return their number."""


Sizes = dict[tuple[int | None, str], tuple[int, int]]
"""Rows and bytes, by operator number and state name."""


class StoredState(Protocol):
    """Stored state at one location."""

    kind: str

    def states(self) -> list[dict[str, Any]]:
        """Return a record for each state."""

    def sizes(self) -> Sizes:
        """Return rows and bytes of each state as stored: in a checkpoint, the state and its newest changes too."""

    def rows(self, asked: Asked) -> Rows:
        """Return the rows of a state, or of what changed in it."""

    def savepoint(self, location: str, operator: int | None, version: int | None) -> Savepoint:
        """Write a savepoint."""


def is_query(location: str) -> bool:
    """Return whether this is a query's checkpoint. Raises OptionError if there is no stored state."""
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


def containing(table: pa.Table, search: str) -> pa.Table:
    """Return the rows in which a part of the key contains a text, ignoring case.

    >>> containing(pa.table({"key.user": ["Ann", "bob"], "value.n": [1, 2]}), "an").to_pylist()
    [{'key.user': 'Ann', 'value.n': 1}]
    """
    found = pa.array([False] * table.num_rows)
    for name in table.column_names:
        if name.partition(".")[0] in ("key", "map_key"):
            column = table[name].combine_chunks()
            if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
                texts = pa.array([str(value) for value in column.to_pylist()], pa.string())
            else:
                texts = column.cast(pa.string())
            found = pc.or_(found, pc.fill_null(pc.match_substring(texts, search, ignore_case=True), fill_value=False))
    return table.filter(found)


class FilesState:
    """The states of a harness's checkpoints, or of a savepoint."""

    def __init__(self, location: str, seal: bytes | None = None) -> None:
        self._location = location
        self._reader = StateReader(location, seal=seal)
        self.kind = "checkpoints" if self._reader.versions() else "savepoint"

    def states(self) -> list[dict[str, Any]]:
        """Return a record for each state."""
        versions = self._reader.versions()
        about = {"versions": f"{versions[0]}-{versions[-1]}" if versions else None}
        return [{**about, "state": state.name, "declared": state.describe()} for state in self._reader.states()]

    def sizes(self) -> Sizes:
        """Return rows and bytes by state, as they are stored."""
        return summed_sizes((None, *stored) for stored in self._reader.sizes())

    def rows(self, asked: Asked) -> Rows:
        """Return the rows of a state, or of what changed in it."""
        self._refuse_operator(asked.operator)
        name = self._name(asked)
        if asked.since is None:
            return _StateRows(self._reader, name, asked.version)
        newest = (self._reader.versions() or [asked.since])[-1]
        return _TableRows(self._reader.diff(name, asked.since, newest if asked.version is None else asked.version))

    def savepoint(self, location: str, operator: int | None, version: int | None) -> Savepoint:
        """Write a savepoint."""
        self._refuse_operator(operator)
        return self._reader.savepoint(location, version)

    def _name(self, asked: Asked) -> str:
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


def summed_sizes(parts: Iterable[tuple[int | None, str, int, int]]) -> Sizes:
    """Sum rows and bytes by operator and state."""
    sizes: Sizes = {}
    for operator, state, rows, size in parts:
        before = sizes.get((operator, state), (0, 0))
        sizes[operator, state] = before[0] + rows, before[1] + size
    return sizes


class _TableRows:
    """The rows of an Arrow table."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def first(self, count: int | None, search: str = "") -> pa.Table:
        return (containing(self._table, search) if search else self._table).slice(0, count)

    def write(self, path: str) -> int:
        return _write(self._table, path)


class _StateRows:
    """The rows of a state. The first rows can be read even if the state is larger than memory."""

    def __init__(self, reader: StateReader, name: str, version: int | None) -> None:
        self._reader = reader
        self._name = name
        self._version = version

    def first(self, count: int | None, search: str = "") -> pa.Table:
        if count is None:
            return _TableRows(self._reader.arrow(self._name, self._version)).first(None, search)
        return pa.concat_tables(self._first(count, search), promote_options="permissive").slice(0, count)

    def _first(self, count: int, search: str) -> Iterator[pa.Table]:
        found = 0
        for piece in self._reader.pieces(self._name, self._version):
            rows = containing(piece, search) if search else piece
            yield rows
            found += rows.num_rows
            if found >= count:
                return

    def write(self, path: str) -> int:
        return _write(self._reader.arrow(self._name, self._version), path)


def _write(table: pa.Table, path: str) -> int:
    if Path(path).exists():
        raise OptionError(f"{path} exists already. Name a file that does not.")
    try:
        pq.write_table(table, path)
    except OSError as error:
        raise UnavailableError(f"{path} could not be written: {error}.") from error
    rows: int = table.num_rows
    return rows
