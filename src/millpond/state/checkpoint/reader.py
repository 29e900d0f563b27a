"""Reads stored state, checkpoints and savepoints, as Arrow, pandas or DuckDB, without an operator.

The reader leaves no trace and takes no lease: a stream may go on writing the checkpoint that is being read. Columns are
`key_group`, `key.*`, `map_key.*` and `value.*` as the state's schemas name them; a list state has one column `value`.
Python objects that msgspec wrote are decoded to plain columns: dataclasses and Structs are structs, dicts are maps, and
values without a single Arrow type are JSON. Objects of other serializers stay bytes.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs

from millpond.errors import CorruptionError, MissingDependencyError, OptionError, UnavailableError
from millpond.state.checkpoint.format.object_columns import decoded
from millpond.state.checkpoint.format.seal import Seal
from millpond.state.checkpoint.format.segment import CellCodec
from millpond.state.checkpoint.restoring import Version, read_version, row_pieces
from millpond.state.checkpoint.savepoint import MANIFEST, Savepoint, ShardState, write_savepoint
from millpond.state.checkpoint.storage.files import FileStorage
from millpond.state.checkpoint.storage.folder import Folder
from millpond.state.types.descriptor import StateDescriptor

if TYPE_CHECKING:
    import duckdb
    import pandas as pd


class StateReader:
    """Reads a folder of checkpoints (that of all shards) or a savepoint.

    Args:
        location: a path, a URI, or a path in `filesystem`.
        filesystem: used instead of the one that the location's scheme names.
        seal: the key with which it is sealed; None if it is not sealed.

    >>> import tempfile
    >>> from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
    >>> from millpond.state.checkpoint import Checkpointer, FileStorage, new_manifest
    >>> location, key = tempfile.mkdtemp(), pa.schema([("user", pa.string())])
    >>> count = StateDescriptor("count", StateKind.VALUE, pa.schema([("n", pa.int64())]))
    >>> manifest = new_manifest("lineage", shard=0, shards=1, max_parallelism=8, key_schema=key)
    >>> backend = HeapBackend(manifest.key_groups)
    >>> checkpoints = Checkpointer(FileStorage(location, 0), backend, manifest, [count])
    >>> state = backend.value_state(count)
    >>> for number in (1, 2):
    ...     backend.enter(3)
    ...     backend.context.key = ("ann",)
    ...     state.update((number,))
    ...     stats = checkpoints.write(checkpoints.begin())
    >>> reader = StateReader(location)
    >>> reader.arrow("count").to_pylist()
    [{'key_group': 3, 'key.user': 'ann', 'value.n': 2}]
    >>> reader.diff("count", 1, 2).to_pylist()
    [{'change': 'changed', 'key_group': 3, 'key.user': 'ann', 'old.n': 1, 'new.n': 2}]
    """

    def __init__(
        self, location: str, *, filesystem: pa.fs.FileSystem | None = None, seal: Seal | bytes | None = None
    ) -> None:
        self._seal = Seal.of(seal)
        folder = Folder(location, filesystem)
        self._location = folder.location
        try:
            shards = [int(name.removeprefix("shard-")) for name in folder.folders() if re.fullmatch(r"shard-\d+", name)]
            is_savepoint = not shards and bool(folder.sizes("."))
        except OSError as error:
            raise UnavailableError(f"{self._location} cannot be read: {error}.") from error
        if not shards and not is_savepoint:
            raise OptionError(
                f"{self._location} holds neither checkpoints (shard-00000, …) nor a savepoint ({MANIFEST})."
            )
        self._savepoint = Savepoint.open(location, filesystem=filesystem, seal=self._seal) if is_savepoint else None
        self._storages = [
            FileStorage(location, shard, filesystem=filesystem, read_only=True, seal=self._seal)
            for shard in sorted(shards)
        ]

    def versions(self) -> list[int]:
        """Return the versions that every shard has, ascending. A savepoint has none, since it is one state."""
        found = [set(storage.versions()) for storage in self._storages]
        return sorted(set.intersection(*found)) if found else []

    def states(self, version: int | None = None) -> tuple[StateDescriptor, ...]:
        """Return the states that are stored, Millpond's own (`$timers`) included."""
        if self._savepoint is not None:
            return self._savepoint.states()
        manifest = self._storages[0].manifest(self._version(version))
        return () if manifest is None else tuple(StateDescriptor.decode(plain) for plain in manifest.states)

    def sizes(self, version: int | None = None) -> Iterator[tuple[str, int, int]]:
        """Yield state, rows and bytes of each segment of a version, or file of a savepoint, without reading them."""
        if self._savepoint is not None:
            yield from ((file.state, file.rows, file.bytes) for file in self._savepoint.contents.files)
        elif self.versions():
            asked = self._version(version)
            for storage in self._storages:
                manifest = storage.manifest(asked)
                yield from ((ref.state, ref.rows, ref.bytes) for ref in (manifest.segments if manifest else ()))

    def arrow(self, state: str, version: int | None = None) -> pa.Table:
        """Return every cell of a state as of a version; by default the newest version that every shard has.

        Raises:
            OptionError: there is no such state or version.
            CorruptionError: a file is damaged or missing. The message names it.
        """
        descriptor = self._descriptor(state, version)
        return decoded(self._stored(descriptor, version), descriptor)

    def pieces(self, state: str, version: int | None = None) -> Iterator[pa.Table]:
        """Yield every cell of a state, some key groups at a time: for a state that is larger than memory.

        Columns are as `arrow` gives them. Objects without a single Arrow type become JSON piece by piece.
        """
        descriptor = self._descriptor(state, version)
        return (decoded(piece, descriptor) for piece in self._stored_pieces(descriptor, version))

    def pandas(self, state: str, version: int | None = None) -> "pd.DataFrame":
        """Return every cell of a state as a DataFrame. Maps are dicts, or lists of pairs if their keys are lists."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependencyError('Reading state as pandas needs it. Run: pip install "pandas>=2.2"') from error
        table = self.arrow(state, version)
        # Dicts, as pandas users expect, unless a map's keys are lists, which pandas cannot use as keys of a dict.
        as_dicts = None if any(_has_nested_keys(kind) for kind in table.schema.types) else "strict"
        frame: pd.DataFrame = table.to_pandas(maps_as_pydicts=as_dicts)
        return frame

    def duckdb(
        self, state: str, version: int | None = None, *, connection: "duckdb.DuckDBPyConnection | None" = None
    ) -> "duckdb.DuckDBPyRelation":
        """Return every cell of a state as a DuckDB relation, of this connection or of DuckDB's default one."""
        try:
            import duckdb
        except ImportError as error:
            raise MissingDependencyError(
                'Reading state with DuckDB needs it. Run: pip install "duckdb>=1.2"'
            ) from error
        return (connection or duckdb).from_arrow(self.arrow(state, version))

    def diff(self, state: str, old: int, new: int) -> pa.Table:
        """Return what changed in a state between two versions, one row per cell.

        The columns are `change` (`added`, `removed` or `changed`), those of the key, and those of the value
        twice: `old.*` and `new.*`, null if there was none.
        """
        if self._savepoint is not None:
            raise OptionError(f"{self._location} is a savepoint, and has no versions to compare.")
        descriptor = self._descriptor(state, new)
        before, after = self._stored(self._descriptor(state, old), old), self._stored(descriptor, new)
        old_cells, new_cells = self._cells(before, descriptor, old), self._cells(after, descriptor, new)
        rows: list[tuple[str, int | None, int | None]] = []
        for cell, (at, value) in new_cells.items():
            earlier, earlier_value = old_cells.get(cell, (None, None))
            if earlier is None or earlier_value != value:
                rows.append(("added" if earlier is None else "changed", earlier, at))
        rows += [("removed", at, None) for cell, (at, _) in old_cells.items() if cell not in new_cells]
        return _difference(decoded(before, descriptor), decoded(after, descriptor), rows)

    def savepoint(
        self, location: str, version: int | None = None, *, savepoint_seal: Seal | bytes | None = None
    ) -> Savepoint:
        """Write every state to an empty folder as of a version; by default the newest that every shard has.

        The savepoint is sealed with `savepoint_seal`, or else with the key with which this is sealed.

        Raises:
            OptionError: this is a savepoint already, there is no such version, or the folder is not empty.
            CorruptionError: a file is damaged or missing. The message names it.
            UnavailableError: it could not be written. What was written is no savepoint, and cannot be opened as one.
        """
        if self._savepoint is not None:
            raise OptionError(f"{self._location} is a savepoint already: copy the folder.")
        version = self._version(version)
        shards = (ShardState.of_storage(storage, version) for storage in self._storages)
        return write_savepoint(location, shards, seal=savepoint_seal or self._seal)

    def _stored(self, state: StateDescriptor, version: int | None) -> pa.Table:
        if self._savepoint is not None:
            return self._savepoint.table(state.name)
        return pa.concat_tables(self._stored_pieces(state, version))

    def _stored_pieces(self, state: StateDescriptor, version: int | None) -> Iterator[pa.Table]:
        if self._savepoint is not None:
            yield from self._savepoint.pieces(state.name)
            return
        for shard in self._shards(self._version(version)):
            yield from row_pieces(shard, state)

    def _shards(self, version: int) -> list[Version]:
        shards = [read_version(storage, version) for storage in self._storages]
        expected = shards[0].manifest.shards
        if len(shards) != expected:
            raise CorruptionError(
                f"{self._location} holds {len(shards)} shards of an operator that has {expected}. Restore the folders "
                "of the others."
            )
        return shards

    def _version(self, version: int | None) -> int:
        versions = self.versions()
        if version is None and versions:
            return versions[-1]
        if version not in versions:
            asked = "a version" if version is None else f"version {version}"
            raise OptionError(f"{self._location} has not {asked} of every shard; it has {versions}.")
        return version

    def _descriptor(self, state: str, version: int | None) -> StateDescriptor:
        if self._savepoint is not None and version is not None:
            raise OptionError(f"{self._location} is a savepoint, which has no versions: ask for none.")
        known = {descriptor.name: descriptor for descriptor in self.states(version)}
        if state not in known:
            raise OptionError(f"{self._location} has no state {state!r}; it has {sorted(known)}.")
        return known[state]

    def _cells(self, table: pa.Table, state: StateDescriptor, version: int) -> dict[Any, tuple[int, Any]]:
        """Return row and value of each cell, by key and map key."""
        manifest = self._storages[0].manifest(version)
        codec = CellCodec(state, pa.ipc.read_schema(pa.py_buffer(manifest.key_schema if manifest else b"")))
        cells = codec.cells(table.append_column("deleted", pa.repeat(pa.scalar(False), table.num_rows)))
        found = enumerate(zip(codec.cell_keys(table), cells.values, strict=True))
        return {cell: (at, value) for at, (cell, value) in found}


def _difference(before: pa.Table, after: pa.Table, rows: Sequence[tuple[str, int | None, int | None]]) -> pa.Table:
    old = before.take(pa.array([at for _, at, _ in rows], type=pa.int64()))
    new = after.take(pa.array([at for _, _, at in rows], type=pa.int64()))
    columns = {"change": pa.array([change for change, _, _ in rows], type=pa.string())}
    # A cell's key is taken from its later row, or else from its earlier row, which is concatenated behind.
    places = pa.array([after.num_rows + (was or 0) if at is None else at for _, was, at in rows], type=pa.int64())
    names = [name for name in after.column_names if not _is_value(name)]
    keys = pa.concat_tables([after.select(names), before.select(names)]).take(places)
    columns |= {name: keys[name] for name in names}
    for prefix, table in (("old", old), ("new", new)):
        for name in filter(_is_value, table.column_names):
            columns[prefix + name.removeprefix("value")] = table[name]
    return pa.table(columns)


def _has_nested_keys(kind: pa.DataType) -> bool:
    """Return whether the type holds a map whose keys are lists or structs."""
    if pa.types.is_map(kind) and pa.types.is_nested(kind.key_type):
        return True
    return any(_has_nested_keys(kind.field(at).type) for at in range(kind.num_fields))


def _is_value(name: str) -> bool:
    return name == "value" or name.startswith("value.")
