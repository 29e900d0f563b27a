"""One RocksDB database in a folder of its own: opening, scanning, errors, closing.

On the data path it lies under `RocksDbBackend`, which knows what the bytes mean. This module does what RocksDB leaves
to its users. The database is a cache of a checkpoint. So files of an earlier owner of the folder are removed, and
nothing is written to survive a crash: the write-ahead log is off. Otherwise the set-up is Flink's: level compaction,
LZ4, a block cache and a bloom filter. Only the write buffers are smaller. No write waits inside RocksDB, where nothing
could interrupt it (`stalls`).

Invariant: only the holder of the lock on the file `lock` in the folder touches the files. The lock ends with its
process.

rocksdict offers no merge operator, and no compaction filter that could read a value's own time (its TTL follows the
machine's clock, which state never does). So an append reads the end of its list (`lists`), and expired values are
removed when the checkpoint rewrites their key group.
"""

import contextlib
import fcntl
import shutil
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import compress, takewhile
from operator import not_
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from millpond.errors import CorruptionError, MillpondError, MissingDependencyError, UnavailableError
from millpond.state.rocksdb.stalls import Stalls, is_full, is_out_of_space, is_stall
from millpond.state.types.ordered_keys import after

if TYPE_CHECKING:
    from millpond.state.rocksdb.unreverted import Unreverted

WRITE_BUFFER_BYTES: Final = 8 << 20
"""A buffer is a skip list that each read and write walks, waiting for memory if the processor's caches do not hold it.
Flink's 64 MiB are slower for keys that come again and again, and no faster for others (`benchmarks.write_buffer`)."""

BLOCK_CACHE_BYTES: Final = 64 << 20

_BLOOM_BITS = 10
_BACKGROUND_JOBS = 2
_FLUSHED_AT_ONCE = 4
_LEVEL_ZERO_STOP = 36
_PENDING_COMPACTION_STOP_BYTES = 256 << 30
_METRICS = {
    "pending_compaction_bytes": "rocksdb.estimate-pending-compaction-bytes",
    "running_compactions": "rocksdb.num-running-compactions",
    "running_flushes": "rocksdb.num-running-flushes",
    "sst_bytes": "rocksdb.total-sst-files-size",
    "memtable_bytes": "rocksdb.cur-size-all-mem-tables",
    "block_cache_bytes": "rocksdb.block-cache-usage",
    "entries": "rocksdb.estimate-num-keys",
}


class Database:
    """RocksDB in `folder`/db, from bytes to bytes.

    Attributes:
        handle: rocksdict's own object, for the hot path.
        unreverted: read in place of the database if its last rollback did not fit on the disk.
    """

    def __init__(self, folder: Path, write_buffer_bytes: int, block_cache_bytes: int) -> None:
        self.folder = folder
        self._rocksdict = _import_rocksdict()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("a")
        except OSError as error:
            raise UnavailableError(f"the RocksDB folder {folder} cannot be used: {error}.") from error
        try:
            self._take_lock()
            shutil.rmtree(folder / "db", ignore_errors=True)
            self.handle: Any = self._open(write_buffer_bytes, block_cache_bytes)
            self._stalls = Stalls(folder, 2 * write_buffer_bytes, self._counter)
        except BaseException:
            self._lock.close()
            raise
        # A close flushes and on a full disk waits for room, even at the process's end. So background work is cancelled.
        self._stop = weakref.finalize(self, self.handle.cancel_all_background, False)
        self.unreverted: Unreverted | None = None
        self.closed = False

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last owner may just have removed its lock file: a lock on that file would protect nothing.
            if not (self.folder / "lock").exists():
                raise BlockingIOError  # noqa: TRY301
        except BlockingIOError as error:
            raise UnavailableError(
                f"the RocksDB folder {self.folder} is in use by another state backend. Give each backend a folder of "
                "its own, or close the other one first."
            ) from error

    def _open(self, write_buffer_bytes: int, block_cache_bytes: int) -> Any:
        rocksdict = self._rocksdict
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(rocksdict.Cache(block_cache_bytes))
        table.set_bloom_filter(_BLOOM_BITS, block_based=False)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(create_if_missing=True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(write_buffer_bytes)
        # Four files of flushed buffers are compacted into the first sorted level at a time, so it is as large as they.
        options.set_max_bytes_for_level_base(_FLUSHED_AT_ONCE * write_buffer_bytes)
        options.set_compaction_style(rocksdict.DBCompactionStyle.level())
        options.set_level_compaction_dynamic_level_bytes(v=True)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        options.set_max_background_jobs(_BACKGROUND_JOBS)
        options.set_is_fd_close_on_exec(enabled=True)
        options.set_keep_log_file_num(1)
        # RocksDB accepts a write or rejects it. It would otherwise slow writes down by making them wait.
        options.set_level_zero_slowdown_writes_trigger(_LEVEL_ZERO_STOP)
        options.set_level_zero_stop_writes_trigger(_LEVEL_ZERO_STOP)
        options.set_soft_pending_compaction_bytes_limit(_PENDING_COMPACTION_STOP_BYTES)
        options.set_hard_pending_compaction_bytes_limit(_PENDING_COMPACTION_STOP_BYTES)
        try:
            handle = rocksdict.Rdict(str(self.folder / "db"), options)
        except Exception as error:
            raise self.failure(error) from error
        self._write_options = rocksdict.WriteOptions()
        self._write_options.disable_wal = True
        self._write_options.no_slowdown = True
        handle.set_write_options(self._write_options)
        return handle

    def write(self, places: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Put, or for None delete, in one batch, all or nothing. Values that are still unreverted are written first."""
        if self.unreverted is not None:
            self.unreverted.put_back()
        self.write_past(places, values)

    def write_past(self, places: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Do the same without writing unreverted values first."""
        has_gone = None in values
        gone = [value is None for value in values] if has_gone else []
        puts = list(map(not_, gone))

        def write() -> None:
            # rocksdict writes a batch only once, so each try needs a new one.
            batch = self._rocksdict.WriteBatch(raw_mode=True)
            # Loops in C keep building a batch at a tenth of the cost of writing it.
            if has_gone:
                deque(map(batch.delete, compress(places, gone)), maxlen=0)
                deque(map(batch.put, compress(places, puts), compress(values, puts)), maxlen=0)
            else:
                deque(map(batch.put, places, values), maxlen=0)
            self.handle.write(batch, self._write_options)

        try:
            write()
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing else
            self.write_again(error, write)

    def write_again(self, error: Exception, write: Callable[[], Any]) -> None:
        """Repeat a write that failed with this error, as long as that may help.

        Raises:
            UnavailableError: it does not help: the disk is full, or the database is broken.
        """
        if isinstance(error, MillpondError):
            raise error
        left = self._stalls.outlast(error, write)
        if left is not None:
            raise self.failure(left) from left

    @staticmethod
    def takes_writes_again(error: MillpondError) -> bool:
        """Return whether a database that failed with this error recovers once there is room. Any other is replaced."""
        cause = error.__cause__
        return isinstance(cause, Exception) and (is_out_of_space(cause) or is_stall(cause))

    def _counter(self, name: str) -> int:
        return self.handle.property_int_value(name) or 0

    def snapshot(self) -> Any:
        """Return the database as it is now, for `read_from`, from any thread."""
        try:
            return self.handle.snapshot()
        except Exception as error:
            raise self.failure(error) from error

    def cursor(self) -> Any:
        """Return the database as it is now, for scans from any thread, one at a time."""
        # Not the snapshot's own cursor: in rocksdict 0.3.29 that sees later writes.
        try:
            # Dropping it frees write buffers and files. RocksDB's own thread does that, or all threads here would wait.
            options = self._rocksdict.ReadOptions()
            options.set_background_purge_on_iterator_cleanup(True)
            return self.handle.iter(options)
        except Exception as error:
            raise self.failure(error) from error

    def read_from(self, snapshot: Any, key: bytes) -> bytes | None:
        """Return a snapshot's value of a key, or None."""
        try:
            data: bytes = snapshot[key]
        except Exception as error:
            # rocksdict's snapshots raise a bare Exception for a missing key.
            if str(error) == "key not found":
                return None
            raise self.failure(error) from error
        return data

    def scan(self, prefix: bytes, cursor: Any = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys that begin with `prefix`, in order, and their values: as of now, or of the cursor's creation."""
        if cursor is None:
            return self.between(prefix, after(prefix))
        return takewhile(lambda pair: pair[0].startswith(prefix), self._walk(cursor, prefix))

    def between(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys from `first` up to but excluding `end`, in order, and their values as of now, read one by one."""
        try:
            # With an upper bound, the scan does not step over deleted keys behind the end.
            options = self._rocksdict.ReadOptions()
            options.set_iterate_upper_bound(end)
            options.set_background_purge_on_iterator_cleanup(True)
            cursor = self.handle.iter(options)
        except Exception as error:
            raise self.failure(error) from error
        # RocksDB reads the bound from the options' own memory while the cursor moves, so they are kept alive.
        found = self._walk(cursor, first, options)
        return found if self.unreverted is None else self.unreverted.laid_over(first, end, found)

    def _walk(self, cursor: Any, first: bytes, _kept: Any = None) -> Iterator[tuple[bytes, bytes]]:
        try:
            cursor.seek(first)
            while cursor.valid():
                yield cursor.key(), cursor.value()
                cursor.next()
            # A scan also ends at a block that cannot be read.
            cursor.status()
        except Exception as error:
            raise self.failure(error) from error

    def properties(self) -> dict[str, int]:
        """Return RocksDB's own counters: sizes in bytes, the others as counts."""
        try:
            return {name: self.handle.property_int_value(known) or 0 for name, known in _METRICS.items()}
        except Exception as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> MillpondError:
        """Return the Millpond error for an error of RocksDB, by its text: RocksDB's errors have no types."""
        if isinstance(error, MillpondError):
            return error
        text = str(error)
        if "Corruption" in text:
            return CorruptionError(
                f"the RocksDB folder {self.folder} is damaged: {text}. It is only a cache of the checkpoint: restore."
            )
        if is_full(error) or is_stall(error):
            return UnavailableError(
                f"no space for keyed state in {self.folder}: {text}. Make room, or set state.backend.rocksdb.local-dir "
                "to a folder on a larger disk; what the checkpoint has is safe."
            )
        return UnavailableError(f"RocksDB in {self.folder} did not do its work: {text}.")

    def close(self) -> None:
        """Close, and remove the files. Snapshots must have been released. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._stop()
        with contextlib.suppress(Exception):  # the files are removed, so unwritten data is no loss
            self.handle.close()
        shutil.rmtree(self.folder / "db", ignore_errors=True)
        (self.folder / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other files are in it
            self.folder.rmdir()
        self._lock.close()


def _import_rocksdict() -> ModuleType:
    try:
        import rocksdict
    except ImportError as error:
        raise MissingDependencyError(
            "the state backend 'rocksdb' needs rocksdict: pip install 'millpond[rocksdb]'"
        ) from error
    return rocksdict
