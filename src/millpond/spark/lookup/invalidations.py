"""Sends the keys that the driver invalidates to the caches of executors.

For tables with `lookup.partial-cache.invalidation`. The driver writes the keys of the last invalidations, each with its
version, to one small file, which is stored and sent like the file of a full table (`files`). A partition reads the
newest file when it begins, and passes it to its cache, which knows the last version that it has applied. The invariant:
**a cache drops every key that was invalidated before its partition began**.

At most `MOST_KEYS` keys are kept. A cache that has missed older ones drops all its keys.
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
from millpond.features.stored.value_header import checked_body, with_header
from millpond.lookup import Key, LookupTable
from millpond.lookup.caches.column_file import one_chunk
from millpond.lookup.column_cache.key_hash import key_array
from millpond.lookup.functions.keys import python_keys
from millpond.lookup.sources.debezium import changed_keys
from millpond.spark.environment.folders import OwnedFolder, user_folder
from millpond.spark.lookup.copies import FileServer
from millpond.spark.lookup.files import found_path, newest_path, served
from millpond.spark.lookup.tls_server import ServerAddress

_KEYS = ".keys"
_VERSION = "__version"
_FORGOTTEN = b"millpond.forgotten"
FORMAT_VERSION, ADDRESS = 1, b"invalidated keys"
MOST_KEYS = 10_000
"""The largest number of invalidated keys in a file."""


def invalidate_from(table: LookupTable, *, debezium: str | None = None) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that invalidates the keys in a stream of changes.

    - Delivery: keys may be invalidated twice, which does no harm.
    - Freshness: partitions of a lookup join that begin after a batch of changes load its keys again.

    Args:
        table: a table with `lookup.partial-cache.invalidation`.
        debezium: the column with Debezium's change events as JSON. None if the DataFrame has the table's key
            columns, under their names.

    For example, with a stream of change events from Kafka::

        changes.writeStream.foreachBatch(invalidate_from(planes, debezium="value")).start()
    """
    names = table.key_schema.names

    def invalidate(changes: DataFrame, _batch_id: int) -> None:
        if debezium is None:
            # As Arrow: Spark's rows have local times without a zone.
            keys = changes.select(*names).distinct().toArrow()
            table.invalidate(python_keys([one_chunk(column) for column in keys.columns])[1])
            return
        messages = (row[0] for row in changes.select(debezium).toLocalIterator())
        table.invalidate(changed_keys(messages, table.key_schema))

    return invalidate


@dataclass(frozen=True)
class Invalidated:
    """The keys of the last invalidations.

    Attributes:
        version: the version of the last invalidation; 0 before the first.
        forgotten: the last version whose keys are no longer kept.
        keys: the keys, with the version of each.

    >>> keys = pa.table({_VERSION: [3, 4, 4], "code": ["JFK", "EWR", "LHR"]})
    >>> Invalidated(4, 2, keys).since(3), Invalidated(4, 2, keys).since(1)
    ([('EWR',), ('LHR',)], None)
    """

    version: int
    forgotten: int
    keys: pa.Table

    @classmethod
    def decode(cls, data: bytes) -> "Invalidated":
        """Decode a file. Empty bytes mean that nothing was ever invalidated.

        Raises:
            CorruptionError: the bytes are not a complete file of this format.
        """
        if not data:
            return cls(0, 0, pa.table({_VERSION: pa.array([], pa.int64())}))
        body = checked_body(FORMAT_VERSION, data, "file of invalidated keys", ADDRESS)
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
        """Return the bytes of a file."""
        keys = self.keys.replace_schema_metadata({_FORGOTTEN: f"{self.version} {self.forgotten}"})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, keys.schema) as writer:
            writer.write_table(keys)
        return with_header(FORMAT_VERSION, sink.getvalue().to_pybytes(), ADDRESS)

    def since(self, version: int) -> list[Key] | None:
        """Return the keys invalidated after a version; None means every key, since some are no longer kept."""
        columns = self.columns_since(version)
        return None if columns is None else list(zip(*(column.to_pylist() for column in columns), strict=True))

    def columns_since(self, version: int) -> list[pa.Array] | None:
        """Return the keys of `since` as one array for each key column."""
        if version < self.forgotten:
            return None
        new = self.keys.filter(pc.greater(self.keys.column(_VERSION), version)).drop_columns([_VERSION])
        return [one_chunk(column) for column in new.columns]


@dataclass(frozen=True)
class InvalidationsPlace:
    """The place where a worker finds the newest invalidations."""

    name: str
    folder: Path
    server: ServerAddress | None

    def newest(self) -> bytes:
        """Return the content of the newest file; empty if nothing was invalidated.

        Raises:
            UnavailableError: the driver does not answer, or the table was closed.
        """
        while True:
            try:
                return found_path(self.name, self.folder, self.server, _KEYS).read_bytes()
            except FileNotFoundError:
                # Another invalidation has replaced the file meanwhile.
                continue


class PublishedInvalidations:
    """Writes the invalidations of a table on the driver, and serves them to executors.

    Args:
        name: the table's name.
        key_schema: its key columns.
        session: the session whose executors read them.
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
            self._write(0, b"")
            self._server = served(session, lambda: newest_path(name, folder, _KEYS))
        except BaseException:
            self.close()
            raise
        self.place = InvalidationsPlace(name, folder, self._server.address if self._server else None)

    def add(self, keys: Sequence[Key] | None) -> None:
        """Invalidate keys for every partition that begins after this call; None means all keys."""
        with self._lock:
            version, forgotten = self._version + 1, self._forgotten
            kept = deque([] if keys is None else [*self._kept, (version, list(keys))])
            if keys is None:
                forgotten = version
            while sum(len(each) for _, each in kept) > MOST_KEYS:
                forgotten = kept.popleft()[0]
            versions = [version for version, each in kept for _ in each]
            columns = list(zip(*(key for _, each in kept for key in each), strict=True))
            # A key that its column cannot hold becomes null, and concerns no row.
            arrays = [
                key_array(values, field.type)
                for values, field in zip(columns or [()] * len(self._schema), self._schema, strict=True)
            ]
            names = [_VERSION, *self._schema.names]
            table = pa.table([pa.array(versions, pa.int64()), *arrays], names=names)
            self._write(version, Invalidated(version, forgotten, table).encode())
            self._kept, self._version, self._forgotten = kept, version, forgotten

    def close(self) -> None:
        """Stop the server and remove the file."""
        if self._server is not None:
            self._server.close()
        self._owned.close()

    def _write(self, version: int, data: bytes) -> None:
        folder = self._owned.path
        before = sorted(folder.glob(f"*{_KEYS}"))
        unfinished = folder / f"{version:012d}.unfinished"
        unfinished.write_bytes(data)
        unfinished.rename(unfinished.with_suffix(_KEYS))
        for outdated in before:
            outdated.unlink(missing_ok=True)
