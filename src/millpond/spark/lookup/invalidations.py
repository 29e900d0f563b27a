"""Keys that the driver invalidates, on their way to the caches of executors.

Beside the lookup join, for tables with `lookup.partial-cache.invalidation`. The driver writes the keys of the last
invalidations, each with its version, as one small file; it lies and travels as the file of a full table does
(`files`). A partition finds the newest one when it begins and takes it to its cache, which knows up to which
version it has heard. The invariant: **a cache forgets whatever was invalidated before its partition began**.

Only so many keys are kept. A cache that has not heard of older ones forgets every key.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from millpond.errors import CorruptionError
from millpond.features.sealing import seal, unseal
from millpond.lookup import Key, LookupTable
from millpond.lookup.sources.debezium import changed_keys
from millpond.spark.environment.folders import OwnedFolder, user_folder
from millpond.spark.lookup.copies import FileServer, ServerAddress
from millpond.spark.lookup.files import found_path, newest_path, served

_KEYS = ".keys"
_VERSION = "__version"
_FORGOTTEN = b"millpond.forgotten"
FORMAT_VERSION, ADDRESS = 1, b"invalidated keys"
MOST_KEYS = 10_000
"""How many invalidated keys a file has at most."""


def invalidate_from(table: LookupTable, *, debezium: str | None = None) -> Callable[[DataFrame, int], None]:
    """What a stream of changes calls with each batch, to invalidate the keys that have changed.

    - Delivery: keys may be invalidated twice, which does no harm.
    - Freshness: partitions of a lookup join that begin after a batch of changes load its keys anew.

    Args:
        table: with `lookup.partial-cache.invalidation`.
        debezium: the column with change events of Debezium as JSON. None where the DataFrame has the table's key
            columns, by their names.

    For example, with a stream of change events from Kafka::

        changes.writeStream.foreachBatch(invalidate_from(planes, debezium="value")).start()
    """
    names = table.key_schema.names

    def invalidate(changes: DataFrame, _batch_id: int) -> None:
        if debezium is None:
            rows = changes.select(*names).distinct().toLocalIterator()
            table.invalidate([tuple(row) for row in rows])
            return
        messages = (row[0] for row in changes.select(debezium).toLocalIterator())
        table.invalidate(changed_keys(messages, table.key_schema))

    return invalidate


@dataclass(frozen=True)
class Invalidated:
    """The keys of the last invalidations.

    Attributes:
        version: of the last one; 0 before the first.
        forgotten: the last one whose keys are not there any more.
        keys: with the version of each.

    >>> keys = pa.table({_VERSION: [3, 4, 4], "code": ["JFK", "EWR", "LHR"]})
    >>> Invalidated(4, 2, keys).since(3), Invalidated(4, 2, keys).since(1)
    ([('EWR',), ('LHR',)], None)
    """

    version: int
    forgotten: int
    keys: pa.Table

    @classmethod
    def decode(cls, data: bytes) -> "Invalidated":
        """What a file has; nothing was ever invalidated where there are no bytes.

        Raises:
            CorruptionError: the bytes are not those of a file.
        """
        if not data:
            return cls(0, 0, pa.table({_VERSION: pa.array([], pa.int64())}))
        body = unseal(FORMAT_VERSION, data, "file of invalidated keys", ADDRESS)
        try:
            keys = pa.ipc.open_stream(body).read_all()
            keys.validate(full=True)
            version, forgotten = (int(number) for number in keys.schema.metadata[_FORGOTTEN].split())
            keys.column(_VERSION)
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
            raise CorruptionError(
                f"a file of invalidated keys is not whole: {error}; invalidate the keys again, which writes another"
            ) from error
        return cls(version, forgotten, keys)

    def encode(self) -> bytes:
        """The bytes of a file."""
        keys = self.keys.replace_schema_metadata({_FORGOTTEN: f"{self.version} {self.forgotten}"})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, keys.schema) as writer:
            writer.write_table(keys)
        return seal(FORMAT_VERSION, sink.getvalue().to_pybytes(), ADDRESS)

    def since(self, version: int) -> list[Key] | None:
        """The keys that were invalidated after a version; None for all there are, as some are not known any more."""
        if version < self.forgotten:
            return None
        new = self.keys.filter(pc.greater(self.keys.column(_VERSION), version)).drop_columns([_VERSION])
        return list(zip(*(column.to_pylist() for column in new.columns), strict=True))


@dataclass(frozen=True)
class InvalidationsPlace:
    """How a worker finds the newest invalidations."""

    name: str
    folder: Path
    server: ServerAddress | None

    def newest(self) -> bytes:
        """The newest file; empty where nothing was invalidated.

        Raises:
            UnavailableError: the driver does not answer, or the table was closed.
        """
        while True:
            try:
                return found_path(self.name, self.folder, self.server, _KEYS).read_bytes()
            except FileNotFoundError:
                # Another invalidation since we looked has replaced it.
                continue


class PublishedInvalidations:
    """The driver's end.

    Args:
        name: the table's.
        key_schema: its key columns.
        session: whose executors will read them.
    """

    def __init__(self, name: str, key_schema: pa.Schema, session: SparkSession) -> None:
        self._schema = key_schema
        self._owned = OwnedFolder(user_folder(), "lookup")
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, list[Key]]] = deque()
        self._version = self._forgotten = 0
        self._server: FileServer | None = None
        folder = self._owned.path
        try:
            self._write(b"")
            self._server = served(session, lambda: newest_path(name, folder, _KEYS))
        except BaseException:
            self.close()
            raise
        self.place = InvalidationsPlace(name, folder, self._server.address if self._server else None)

    def add(self, keys: Sequence[Key] | None) -> None:
        """Have every partition that begins from now on forget keys, or all."""
        with self._lock:
            self._version += 1
            self._kept.append((self._version, list(keys or [])))
            if keys is None:
                self._kept.clear()
                self._forgotten = self._version
            while sum(len(each) for _, each in self._kept) > MOST_KEYS:
                self._forgotten = self._kept.popleft()[0]
            versions = [version for version, each in self._kept for _ in each]
            columns = list(zip(*(key for _, each in self._kept for key in each), strict=True))
            arrays = [
                pa.array(values, field.type)
                for values, field in zip(columns or [()] * len(self._schema), self._schema, strict=True)
            ]
            names = [_VERSION, *self._schema.names]
            table = pa.table([pa.array(versions, pa.int64()), *arrays], names=names)
            self._write(Invalidated(self._version, self._forgotten, table).encode())

    def close(self) -> None:
        """Remove the file."""
        if self._server is not None:
            self._server.close()
        self._owned.close()

    def _write(self, data: bytes) -> None:
        folder = self._owned.path
        before = sorted(folder.glob(f"*{_KEYS}"))
        unfinished = folder / f"{self._version:012d}.unfinished"
        unfinished.write_bytes(data)
        unfinished.rename(unfinished.with_suffix(_KEYS))
        for outdated in before:
            outdated.unlink(missing_ok=True)
