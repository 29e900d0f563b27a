"""A savepoint: the whole state of an operator as Parquet files, for any number of shards and any backend.

    LOCATION/state-count/shard-00000.parquet …   one folder per state, one or several files per shard
             MANIFEST                      written last

The columns are `key_group`, `key.*`, `map_key.*` and `value.*` as the state's schemas name them (a list state has one
column `value`), so DuckDB, pandas or Spark read them without Millpond. Python objects are the bytes of their
serializer. Those of msgspec are also there as JSON, in a column `json`.

The manifest holds length and checksum of every file, the states' descriptors, the key schema, the maximum parallelism,
the watermark and the processing time. Under the same maximum parallelism a key never changes its key group, so a shard
of any new layout takes its own key groups from each file. `starting` loads it under another maximum parallelism.

Invariant: no row is loaded before every file that the shard needs was verified against the manifest.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
import xxhash

from millpond.errors import CorruptionError, OptionError, UnavailableError
from millpond.masking import masked
from millpond.state.checkpoint.format.manifest import Manifest
from millpond.state.checkpoint.format.object_columns import JSON_COLUMN, with_json
from millpond.state.checkpoint.format.savepoint_manifest import SavepointFile, SavepointManifest
from millpond.state.checkpoint.format.seal import Seal, closed, opened
from millpond.state.checkpoint.format.segment import CellCodec, checked_body, of_key_groups, with_checksum
from millpond.state.checkpoint.living_rows import living_rows
from millpond.state.checkpoint.next_manifest import Source
from millpond.state.checkpoint.restoring import parts_of, read_version, row_pieces
from millpond.state.checkpoint.storage.folder import Folder
from millpond.state.checkpoint.storage.interface import CheckpointStorage
from millpond.state.types.descriptor import StateDescriptor

MANIFEST = "MANIFEST"

_MAGIC = b"MPSP"
_SEALED_AS = "savepoint"
_FILE_BYTES = 4 << 20
"""Size of the rows in one file, before compression: a file is in memory as a whole when written and when read."""
_ROW_GROUP_BYTES = 1 << 20
_ROWS_AT_ONCE = 10_000
"""Cells that are converted to columns at once."""


@dataclass(frozen=True)
class ShardState:
    """One shard's state, to be written into a savepoint: from a snapshot, or from a stored version.

    Attributes:
        manifest: names the shard and operator, the watermark and the processing time.
        states: the descriptors of all states it holds.
        pieces: yields the rows of a state, some key groups at a time. A shard may hold more than fits into memory.
    """

    manifest: Manifest
    states: tuple[StateDescriptor, ...]
    pieces: Callable[[StateDescriptor], Iterator[pa.Table]]

    @staticmethod
    def of_snapshot(manifest: Manifest, snapshot: Source, states: Iterable[StateDescriptor]) -> "ShardState":
        """Return a snapshot's state, or a backend's present one. `manifest` is the shard's, with the savepoint's times.

        It is read while the savepoint is written: keep the snapshot until then, or do not change the backend.
        """
        key_schema = pa.ipc.read_schema(pa.py_buffer(manifest.key_schema))

        def pieces(state: StateDescriptor) -> Iterator[pa.Table]:
            codec = CellCodec(state, key_schema)
            for group in manifest.key_groups:
                cells = snapshot.cells(state.name, group)
                for first in range(0, len(cells), _ROWS_AT_ONCE):
                    rows = codec.table(cells.part(first, _ROWS_AT_ONCE)).drop_columns(["deleted"])
                    yield living_rows(rows, state, manifest.processing_ms)

        return ShardState(manifest, tuple(states), pieces)

    @staticmethod
    def of_storage(storage: CheckpointStorage, version: int | None = None) -> "ShardState":
        """Return the state of a stored version, by default the newest. A CorruptionError says what is damaged.

        Its segments are read again while the savepoint is written.
        """
        versions = storage.versions()
        if not versions:
            raise OptionError(f"{storage.name} has no version to make a savepoint of.")
        found = read_version(storage, versions[-1] if version is None else version)
        states = tuple(StateDescriptor.decode(plain) for plain in found.manifest.states)
        return ShardState(found.manifest, states, partial(row_pieces, found))


def write_savepoint(
    location: str,
    shards: Iterable[ShardState],
    *,
    filesystem: pa.fs.FileSystem | None = None,
    seal: Seal | bytes | None = None,
) -> "Savepoint":
    """Write a savepoint of every shard of an operator into an empty folder. The shards are read one by one.

    Args:
        location: a path, a URI, or a path in `filesystem`.
        shards: all shards of the operator.
        filesystem: used instead of the one that the location's scheme names.
        seal: the key to seal it with, 16 to 64 random bytes; None for checksums alone.

    Raises:
        OptionError: the folder is not empty, or these are not the shards of one operator, each once.
        UnavailableError: it could not be written. What was written is no savepoint, and cannot be opened as one.
    """
    folder, seal = Folder(location, filesystem), Seal.of(seal)
    try:
        check_empty(folder)
        manifests: list[Manifest] = []
        states: dict[str, StateDescriptor] = {}
        files: list[SavepointFile] = []
        for shard in shards:
            _refuse_strangers(folder.location, manifests, shard.manifest)
            manifests.append(shard.manifest)
            for state in shard.states:
                if states.setdefault(state.name, state).encode() != state.encode():
                    raise OptionError(
                        f"{folder.location}: state {state.name!r} is [{states[state.name].describe()}] in one shard "
                        f"and [{state.describe()}] in shard {shard.manifest.shard}. Let every shard hold the same "
                        "declaration."
                    )
                part = f"shard-{shard.manifest.shard:05d}"
                files += write_rows(folder, state, part, shard.pieces(state), seal)
        return finish_savepoint(folder, manifests, states.values(), files, seal)
    except OSError as error:
        raise not_written(location, error) from error


def check_empty(folder: Folder) -> None:
    """Raise an OptionError if the folder for a savepoint holds anything."""
    if folder.sizes(".", recursive=True):
        raise OptionError(
            f"{folder.location} is not empty. A savepoint is never written over anything: choose a new folder."
        )


def not_written(location: str, error: OSError) -> UnavailableError:
    """Return the error for a savepoint that could not be written."""
    return UnavailableError(
        f"the savepoint {masked(location)} could not be written: {error}. Write it to a new folder."
    )


def finish_savepoint(
    folder: Folder,
    manifests: Sequence[Manifest],
    states: Iterable[StateDescriptor],
    files: Sequence[SavepointFile],
    seal: Seal | None = None,
) -> "Savepoint":
    """Write the manifest, which completes a savepoint once every shard's files are written."""
    if len(manifests) != (manifests[0].shards if manifests else 1):
        raise OptionError(
            f"{folder.location}: expected every shard once, got {sorted(manifest.shard for manifest in manifests)}."
        )
    contents = SavepointManifest(
        max_parallelism=manifests[0].max_parallelism,
        key_schema=manifests[0].key_schema,
        watermark_ms=min(manifest.watermark_ms for manifest in manifests),
        states=tuple(state.encode() for state in states),
        files=tuple(files),
        processing_ms=min(manifest.processing_ms for manifest in manifests),
    )
    folder.make(["."])
    for name in {file.name.partition("/")[0] for file in files}:
        folder.sync(name)
    folder.write(MANIFEST, closed(seal, with_checksum(_MAGIC, msgspec.msgpack.encode(contents)), _SEALED_AS))
    folder.sync(".")
    return Savepoint(folder, contents, seal)


def _refuse_strangers(location: str, manifests: Sequence[Manifest], manifest: Manifest) -> None:
    for other in manifests:
        same = (other.shards, other.max_parallelism, other.key_schema) == (
            manifest.shards,
            manifest.max_parallelism,
            manifest.key_schema,
        )
        if other.shard == manifest.shard or not same:
            raise OptionError(
                f"{location}: shard {manifest.shard} of {manifest.shards} (maximum parallelism "
                f"{manifest.max_parallelism}) does not go with shard {other.shard} of {other.shards} "
                f"(maximum parallelism {other.max_parallelism}). "
                "A savepoint holds each shard of one operator once."
            )


def write_rows(
    folder: Folder, state: StateDescriptor, part: str, pieces: Iterable[pa.Table], seal: Seal | None = None
) -> Iterator[SavepointFile]:
    """Write rows of one state to files of a few MB, named after `part`, their part of the operator."""
    # Small pieces go together into a row group, and large ones are cut.
    cut = (each for piece in pieces for each in parts_of(piece))
    groups = map(pa.concat_tables, _by_size(cut, _ROW_GROUP_BYTES))
    for number, some in enumerate(_by_size(groups, _FILE_BYTES)):
        yield _written(folder, state, part, number, some, seal)


def _by_size(tables: Iterable[pa.Table], size: int) -> Iterator[list[pa.Table]]:
    """Yield as many tables together as have about this many bytes."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(each.nbytes for each in waiting) >= size:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _written(
    folder: Folder, state: StateDescriptor, part: str, number: int, groups: Sequence[pa.Table], seal: Seal | None
) -> SavepointFile:
    sink = pa.BufferOutputStream()
    # Row groups are encoded one by one: Parquet's writer needs several times the bytes of what it is given at once.
    tables = (with_json(group, state) for group in groups)
    first = next(tables)
    with pq.ParquetWriter(sink, first.schema, compression="zstd") as writer:
        for table in chain((first,), tables):
            writer.write_table(table)
    data = sink.getvalue()
    # The prefix protects from state names that have a meaning as a path: `..`, `MANIFEST`.
    name = f"state-{quote(state.name, safe='')}/{part}{f'-{number:04d}' if number else ''}.parquet"
    folder.make([name.partition("/")[0]])
    folder.write(name, data)
    bounds = [pc.min_max(group["key_group"]).as_py() for group in groups]
    return SavepointFile(
        name,
        state.name,
        min(each["min"] for each in bounds),
        max(each["max"] for each in bounds),
        sum(group.num_rows for group in groups),
        data.size,
        xxhash.xxh64_intdigest(data),
        "" if seal is None else seal.mac(data, f"file {name}").hex(),
    )


class Savepoint:
    """A complete savepoint. Each file is verified before anything is taken from it."""

    def __init__(self, folder: Folder, contents: SavepointManifest, seal: Seal | None = None) -> None:
        self._folder = folder
        self._seal = seal
        self.contents = contents

    @staticmethod
    def open(
        location: str, *, filesystem: pa.fs.FileSystem | None = None, seal: Seal | bytes | None = None
    ) -> "Savepoint":
        """Open a savepoint. A CorruptionError names what is missing, torn or altered.

        `seal` is the key with which it was sealed. Raises OptionError if the key is missing or another one.
        """
        folder, seal = Folder(location, filesystem), Seal.of(seal)
        name = f"the manifest {folder.path(MANIFEST)}"
        try:
            sizes = folder.sizes(".", recursive=True)
            if MANIFEST not in sizes:
                raise CorruptionError(
                    f"{name} is missing: the savepoint was not finished, or is none. Use another savepoint."
                )
            body = checked_body(_MAGIC, opened(seal, folder.read(MANIFEST), _SEALED_AS, name), name)
        except OSError as error:
            raise UnavailableError(f"the savepoint {masked(location)} cannot be read: {error}.") from error
        contents = SavepointManifest.decode(body, name)
        for file in contents.files:
            if sizes.get(file.name) != file.bytes:
                has = f"has {sizes[file.name]} bytes" if file.name in sizes else "is missing"
                raise CorruptionError(
                    f"file {folder.path(file.name)} {has}, expected {file.bytes} bytes: the savepoint is not as it was "
                    "written. Nothing was taken from it; use another one."
                )
        return Savepoint(folder, contents, seal)

    @property
    def location(self) -> str:
        """The folder of the savepoint, as errors name it."""
        return self._folder.location

    def states(self) -> tuple[StateDescriptor, ...]:
        """Return the states it holds. The values of Python objects are bytes."""
        return tuple(StateDescriptor.decode(plain) for plain in self.contents.states)

    def table(self, state: str, key_groups: range | None = None) -> pa.Table:
        """Return the rows of one state, of all key groups or of some."""
        pieces = list(self.pieces(state, key_groups))
        return pa.concat_tables(pieces) if pieces else self._schema(state).empty_table()

    def pieces(self, state: str, key_groups: range | None = None) -> Iterator[pa.Table]:
        """Yield the same, one file at a time."""
        schema = self._schema(state)
        for file in self._files(state, key_groups):
            yield _rows(self._proven(file), schema, key_groups)

    def prove(self, key_groups: range | None = None) -> None:
        """Verify every file with rows of these key groups. A CorruptionError names one that was altered."""
        for state in self.states():
            for file in self._files(state.name, key_groups):
                self._proven(file)

    def file_rows(self, file: SavepointFile) -> pa.Table:
        """Return the rows of one file, so that many tasks can read a large savepoint."""
        return _rows(self._proven(file), self._schema(file.state), None)

    def _schema(self, state: str) -> pa.Schema:
        descriptor = {each.name: each for each in self.states()}[state]
        cells = CellCodec(descriptor, pa.ipc.read_schema(pa.py_buffer(self.contents.key_schema))).schema
        return cells.remove(cells.get_field_index("deleted"))

    def _files(self, state: str, key_groups: range | None) -> list[SavepointFile]:
        return [
            file
            for file in self.contents.files
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
        if self._seal is not None and file.mac != self._seal.mac(data, f"file {file.name}").hex():
            raise CorruptionError(
                f"file {path} does not match its seal in the manifest: it was altered by somebody who does not have "
                "the key. Nothing was taken from it; use another savepoint."
            )
        return data


def _rows(data: bytes, schema: pa.Schema, key_groups: range | None) -> pa.Table:
    table = pq.read_table(pa.py_buffer(data))
    if JSON_COLUMN in table.column_names:
        table = table.drop_columns([JSON_COLUMN])
    table = table.cast(schema)
    return table if key_groups is None else of_key_groups(table, key_groups)
