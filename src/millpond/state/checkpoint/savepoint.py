"""A savepoint: the whole state of an operator as Parquet files, for any number of shards and any backend.

    LOCATION/state-count/shard-00000.parquet …   a folder a state, one file a shard or several
             MANIFEST                      written last

The columns are `key_group`, `key.*`, `map_key.*` and `value.*` as the state's schemas name them (a list
state has one column `value`), so DuckDB, pandas or Spark read them without Millpond. Python objects are
there as the bytes of their serializer, and those of msgspec beside that as JSON, in a column `json`.

The manifest holds length and checksum of every file, the states' descriptors, the key schema, the
maximum parallelism, the watermark and the processing time. Keys never change their key group, and the
maximum parallelism stays, so a shard of any new layout takes from each file the key groups that are its own.

Invariant: no row is loaded before every file that the shard needs was found as the manifest says.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
import xxhash

from millpond.errors import CorruptionError, OptionError, UnavailableError
from millpond.state.backend import Cells, KeyedStateBackend
from millpond.state.checkpoint.folder import Folder, shown
from millpond.state.checkpoint.head import Head, birth
from millpond.state.checkpoint.object_columns import JSON_COLUMN, with_json
from millpond.state.checkpoint.restoring import Restored, StoredStates, newest_rows, read_version
from millpond.state.checkpoint.segment import CellCodec, sealed, unsealed
from millpond.state.checkpoint.storage import CheckpointStorage
from millpond.state.descriptor import StateDescriptor

MANIFEST = "MANIFEST"

_MAGIC = b"MPSP"


class SavepointFile(msgspec.Struct, frozen=True, array_like=True):
    """One Parquet file: which cells it holds, and how to know that it is whole."""

    name: str
    state: str
    first_group: int
    last_group: int
    rows: int
    bytes: int
    checksum: int


class Manifest(msgspec.Struct, frozen=True):
    """What a savepoint consists of."""

    max_parallelism: int
    key_schema: bytes
    watermark_ms: int
    states: tuple[dict[str, Any], ...]
    files: tuple[SavepointFile, ...]
    processing_ms: int = -1


class HasCells(Protocol):
    """A snapshot, or a backend whose state is not changed meanwhile."""

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group."""
        ...


@dataclass(frozen=True)
class ShardState:
    """One shard's state, to be written into a savepoint: from a snapshot, or from a stored version.

    Attributes:
        head: says which shard of which operator it is, under which watermark and at which processing time.
        states: the descriptors of everything it holds.
        tables: the rows of each state, by its name.
    """

    head: Head
    states: tuple[StateDescriptor, ...]
    tables: dict[str, pa.Table]

    @staticmethod
    def of_snapshot(head: Head, snapshot: HasCells, states: Iterable[StateDescriptor]) -> "ShardState":
        """What a snapshot holds, or a backend now. `head` is any of the shard's that has the savepoint's times."""
        states = tuple(states)
        key_schema = pa.ipc.read_schema(pa.py_buffer(head.key_schema))
        tables = {}
        for state in states:
            codec = CellCodec(state, key_schema)
            groups = (codec.table(snapshot.cells(state.name, group)) for group in head.key_groups)
            tables[state.name] = pa.concat_tables(groups).drop_columns(["deleted"])
        return ShardState(head, states, tables)

    @staticmethod
    def of_storage(storage: CheckpointStorage, version: int | None = None) -> "ShardState":
        """A stored version, the newest unless another is asked for. A CorruptionError says what is damaged."""
        versions = storage.versions()
        if not versions:
            raise OptionError(f"{storage.name} has no version to make a savepoint of.")
        found = read_version(storage, versions[-1] if version is None else version)
        states = tuple(StateDescriptor.decode(plain) for plain in found.head.states)
        return ShardState(found.head, states, {state.name: newest_rows(found, state) for state in states})


def write_savepoint(
    location: str, shards: Iterable[ShardState], *, filesystem: pa.fs.FileSystem | None = None
) -> "Savepoint":
    """Write a savepoint of every shard of an operator into an empty folder. The shards are taken one by one.

    Raises:
        OptionError: the folder is not empty, or these are not the shards of one operator, each once.
        UnavailableError: it could not be written; what is there is no savepoint, and is refused as such.
    """
    folder = Folder(location, filesystem)
    try:
        check_empty(folder)
        heads: list[Head] = []
        states: dict[str, StateDescriptor] = {}
        files: list[SavepointFile] = []
        for shard in shards:
            _refuse_strangers(folder.location, heads, shard.head)
            heads.append(shard.head)
            for state in shard.states:
                if states.setdefault(state.name, state).encode() != state.encode():
                    raise OptionError(
                        f"{folder.location}: state {state.name!r} is [{states[state.name].describe()}] in one shard "
                        f"and [{state.describe()}] in shard {shard.head.shard}. Let every shard hold the same "
                        "declaration."
                    )
                files += write_rows(folder, state, f"shard-{shard.head.shard:05d}", shard.tables[state.name])
        return finish_savepoint(folder, heads, states.values(), files)
    except OSError as error:
        raise not_written(location, error) from error


def check_empty(folder: Folder) -> None:
    """Refuse to write a savepoint into a folder that holds anything."""
    if folder.sizes(".", recursive=True):
        raise OptionError(
            f"{folder.location} is not empty. A savepoint is never written over anything: choose a new folder."
        )


def not_written(location: str, error: OSError) -> UnavailableError:
    """The error for a savepoint whose writing failed."""
    return UnavailableError(f"the savepoint {shown(location)} could not be written: {error}. Write it to a new folder.")


def finish_savepoint(
    folder: Folder, heads: Sequence[Head], states: Iterable[StateDescriptor], files: Sequence[SavepointFile]
) -> "Savepoint":
    """Write the manifest, which makes a savepoint of files that were written for every shard of an operator."""
    if len(heads) != (heads[0].shards if heads else 1):
        raise OptionError(f"{folder.location}: expected every shard once, got {sorted(head.shard for head in heads)}.")
    manifest = Manifest(
        max_parallelism=heads[0].max_parallelism,
        key_schema=heads[0].key_schema,
        watermark_ms=min(head.watermark_ms for head in heads),
        states=tuple(state.encode() for state in states),
        files=tuple(files),
        processing_ms=min(head.processing_ms for head in heads),
    )
    folder.make(["."])
    for name in {file.name.partition("/")[0] for file in files}:
        folder.sync(name)
    folder.write(MANIFEST, sealed(_MAGIC, msgspec.msgpack.encode(manifest)))
    folder.sync(".")
    return Savepoint(folder, manifest)


def _refuse_strangers(location: str, heads: Sequence[Head], head: Head) -> None:
    for other in heads:
        same = (other.shards, other.max_parallelism, other.key_schema) == (
            head.shards,
            head.max_parallelism,
            head.key_schema,
        )
        if other.shard == head.shard or not same:
            raise OptionError(
                f"{location}: shard {head.shard} of {head.shards} (maximum parallelism {head.max_parallelism}) does "
                f"not go with shard {other.shard} of {other.shards} (maximum parallelism {other.max_parallelism}). "
                "A savepoint holds each shard of one operator once."
            )


def write_rows(folder: Folder, state: StateDescriptor, part: str, table: pa.Table) -> Iterator[SavepointFile]:
    """Write rows of one state to a file of their own, named after the part of the operator that they are."""
    if not table.num_rows:
        return
    sink = pa.BufferOutputStream()
    pq.write_table(with_json(table, state), sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    # A prefix, for names that mean something as a path: `..`, `MANIFEST`.
    name = f"state-{quote(state.name, safe='')}/{part}.parquet"
    folder.make([name.partition("/")[0]])
    folder.write(name, data)
    groups = pc.min_max(table["key_group"]).as_py()
    checksum = xxhash.xxh64_intdigest(data)
    yield SavepointFile(name, state.name, groups["min"], groups["max"], table.num_rows, len(data), checksum)


class Savepoint:
    """A savepoint that is complete. What it holds is proven file by file, before anything is taken from one."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder = folder
        self.manifest = manifest

    @staticmethod
    def open(location: str, *, filesystem: pa.fs.FileSystem | None = None) -> "Savepoint":
        """Open a savepoint. A CorruptionError names what is missing, torn or altered."""
        folder = Folder(location, filesystem)
        name = f"the manifest {folder.path(MANIFEST)}"
        try:
            sizes = folder.sizes(".", recursive=True)
            if MANIFEST not in sizes:
                raise CorruptionError(
                    f"{name} is missing: the savepoint was not finished, or is none. Use another savepoint."
                )
            body = unsealed(_MAGIC, folder.read(MANIFEST), name)
        except OSError as error:
            raise UnavailableError(f"the savepoint {shown(location)} cannot be read: {error}.") from error
        manifest = msgspec.msgpack.decode(body, type=Manifest)
        for file in manifest.files:
            if sizes.get(file.name) != file.bytes:
                has = f"has {sizes[file.name]} bytes" if file.name in sizes else "is missing"
                raise CorruptionError(
                    f"file {folder.path(file.name)} {has}, expected {file.bytes} bytes: the savepoint is not as it was "
                    "written. Nothing was taken from it; use another one."
                )
        return Savepoint(folder, manifest)

    @property
    def location(self) -> str:
        """Where it is."""
        return self._folder.location

    def states(self) -> tuple[StateDescriptor, ...]:
        """The states it holds; the values of Python objects are bytes."""
        return tuple(StateDescriptor.decode(plain) for plain in self.manifest.states)

    def table(self, state: str, key_groups: range | None = None) -> pa.Table:
        """The rows of one state, of all key groups or of some."""
        descriptor = {each.name: each for each in self.states()}[state]
        schema = _schema(descriptor, self.manifest.key_schema)
        files = self._files(state, key_groups)
        tables = [_rows(data, schema, key_groups) for data in map(self._proven, files)]
        return pa.concat_tables([schema.empty_table(), *tables])

    def file_rows(self, file: SavepointFile) -> pa.Table:
        """The rows of one file, so that a large savepoint can be read by many tasks."""
        descriptor = {each.name: each for each in self.states()}[file.state]
        return _rows(self._proven(file), _schema(descriptor, self.manifest.key_schema), None)

    def restore(
        self,
        shard: int,
        shards: int,
        backend: KeyedStateBackend,
        declared: Iterable[StateDescriptor] = (),
        *,
        lineage: str,
        now_ms: int | None = None,
    ) -> Restored:
        """Load what belongs to a shard into an empty backend. The first checkpoint after it is a full one.

        Args:
            shard: its number, from 0.
            shards: how many there are now; any number up to the maximum parallelism, which stays.
            backend: of the shard's key groups.
            declared: the states as the operator declares them; others stay as they are stored.
            lineage: random; names the shard's new life.
            now_ms: the time at which the lives of values begin where a TTL was added.
        """
        manifest = self.manifest
        key_schema = pa.ipc.read_schema(pa.py_buffer(manifest.key_schema))
        if shards > manifest.max_parallelism:
            raise OptionError(
                f"shards is {shards}; {self.location} has {manifest.max_parallelism} key groups, and that many shards "
                "at most."
            )
        head = birth(lineage, shard, shards, manifest.max_parallelism, key_schema)
        head = msgspec.structs.replace(head, watermark_ms=manifest.watermark_ms, processing_ms=manifest.processing_ms)
        states = StoredStates.of(manifest.states, declared, manifest.key_schema, now_ms)
        schemas = {state.name: _schema(state, manifest.key_schema) for state in self.states()}
        proven = [(file.state, self._proven(file)) for name in schemas for file in self._files(name, head.key_groups)]
        for state, data in proven:
            table = _rows(data, schemas[state], head.key_groups)
            deleted = pa.repeat(pa.scalar(False), table.num_rows)
            states.load(backend, state, table.append_column("deleted", deleted))
        return Restored(head, states.descriptors)

    def _files(self, state: str, key_groups: range | None) -> list[SavepointFile]:
        return [
            file
            for file in self.manifest.files
            if file.state == state
            and (key_groups is None or (file.first_group < key_groups.stop and file.last_group >= key_groups.start))
        ]

    def _proven(self, file: SavepointFile) -> bytes:
        path = self._folder.path(file.name)
        try:
            data = self._folder.read(file.name)
        except FileNotFoundError as error:
            raise CorruptionError(f"file {path} is missing: the savepoint is incomplete. Use another one.") from error
        except OSError as error:
            raise UnavailableError(f"file {path} cannot be read: {error}.") from error
        if (len(data), xxhash.xxh64_intdigest(data)) != (file.bytes, file.checksum):
            raise CorruptionError(
                f"file {path} does not match its checksum in the manifest. Nothing was taken from it; use another "
                "savepoint."
            )
        return data


def _schema(state: StateDescriptor, key_schema: bytes) -> pa.Schema:
    cells = CellCodec(state, pa.ipc.read_schema(pa.py_buffer(key_schema))).schema
    return cells.remove(cells.get_field_index("deleted"))


def _rows(data: bytes, schema: pa.Schema, key_groups: range | None) -> pa.Table:
    table = pq.read_table(pa.py_buffer(data))
    if JSON_COLUMN in table.column_names:
        table = table.drop_columns([JSON_COLUMN])
    table = table.cast(schema)
    if key_groups is None:
        return table
    group = table["key_group"]
    return table.filter(pc.and_(pc.greater_equal(group, key_groups.start), pc.less(group, key_groups.stop)))
