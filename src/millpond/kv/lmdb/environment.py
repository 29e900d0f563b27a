"""One open LMDB environment per process and path: opening, growing, failing, forking.

Place on the data path: under `LmdbStore`, which knows what the rows mean. This module only runs
transactions. It does what LMDB leaves to its users [1]:

- *An environment may be open once per process.* Its file locks belong to the process, and a second
  handle that closes releases the first one's. So all stores on a path share one `Environment`. It counts
  their leases; when the last is released it closes, and stays in the registry.
- *It may not be used after fork.* So a fork waits until no transaction is open. The child closes the
  inherited handle at once, while it has no locks of its own to lose by that. It opens a handle of its own
  when it first needs one.
- *The map has a size.* A write that does not fit (MapFull) is undone; the map is doubled and the write
  is run again. A map that another process has grown (MapResized) is adopted. Both need the process to
  have no transaction open. So a transaction holds a readers–writer lock shared, and a resize holds it
  exclusively. No thread waits for this lock while a commit is synced, except during a resize.
- *After some failures it refuses all work* (a failed write of the meta page). So after any failure
  that is not understood, the handle is closed, and the next call opens a new one.

A store that nobody closes releases its lease when it is garbage-collected. That may happen at any moment, in any
thread: within a transaction, or while the thread holds a lock. So a release waits for no lock. If a transaction is
open, the thread that ends it closes the handle.

Invariant: a transaction body may run more than once, and takes effect exactly once or not at all.

[1] http://www.lmdb.tech/doc/ (Caveats), https://lmdb.readthedocs.io
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from millpond.errors import CorruptionError, MissingDependencyError, OptionError, UnavailableError
from millpond.kv.readers_writer_lock import ReadersWriterLock

_T = TypeVar("_T")
_A = TypeVar("_A")

_MAX_READERS = 1022
"""Read transactions at one time over all processes; LMDB fixes it when the lock file is made."""


class Environment:
    """The one handle of this process on the LMDB files in `path`; see the module's docstring.

    Get it from `lease`. `read` and `write` run a body in one transaction, from any thread.
    """

    def __init__(self, path: str, *, map_bytes: int, sync: bool) -> None:
        self.path = path
        self.sync = sync
        self.leases = 0
        """Leases that were taken, without those that were counted as released. Guarded by the registry's lock."""
        self._released: deque[None] = deque()
        self._closes_next = False
        self._map_bytes = map_bytes
        self._lmdb = _import_lmdb()
        self.transactions = ReadersWriterLock()
        self._handle: Any = None

    def read(self, body: Callable[[Any], _T]) -> _T:
        """Run `body(transaction)` on one snapshot."""
        return self._run(body, write=False)

    def read_with(self, body: Callable[[Any, _A], _T], argument: _A) -> _T:
        """Run `body(transaction, argument)` on one snapshot: `read` for the hot path, without closures."""
        transactions = self.transactions
        me = transactions.acquire_shared()
        try:
            handle = self._handle
            if handle is not None:
                transaction = handle.begin()
                try:
                    return body(transaction, argument)
                finally:
                    transaction.abort()
        except self._lmdb.Error:
            pass  # the general way below meets the same failure again, and handles each kind
        finally:
            transactions.release_shared(me)
            if self._closes_next:
                self._close_if_idle()
        return self.read(lambda transaction: body(transaction, argument))

    def write(self, body: Callable[[Any], _T]) -> _T:
        """Run `body(transaction)` and commit; if it raises, nothing of it is kept."""
        return self._run(body, write=True)

    @property
    def is_unused(self) -> bool:
        """Whether all leases were released."""
        return self.leases == len(self._released)

    def release(self) -> None:
        """Release a lease. Takes no lock that another thread may hold, and waits for nothing."""
        self._released.append(None)
        if self.is_unused:
            self._closes_next = True
            self._close_if_idle()

    def count_released(self) -> None:
        """Subtract the released leases. The caller holds the registry's lock."""
        while self._released:
            # In this order the environment may be taken for used in between, never for unused.
            self.leases -= 1
            self._released.pop()

    def close_if_unused(self) -> None:
        """Wait for open transactions and close the handle, unless a new lease was taken meanwhile."""
        with self.transactions.exclusive():
            self._close_unused()

    def _close_if_idle(self) -> None:
        """Close the handle if it is unused and no transaction is open. Otherwise the next transaction to end tries."""
        self.transactions.run_if_idle(self._close_unused)

    def _close_unused(self) -> None:
        self._closes_next = False
        if self.is_unused:
            self._close_handle()

    def start_anew(self) -> None:
        """Close the parent's handle and forget its threads; a forked child calls this before anything else."""
        self._close_handle()
        self.transactions = ReadersWriterLock()

    def _run(self, body: Callable[[Any], _T], *, write: bool) -> _T:
        try:
            return self._tried(body, write=write)
        finally:
            if self._closes_next:
                self._close_if_idle()

    def _tried(self, body: Callable[[Any], _T], *, write: bool) -> _T:
        readers_swept = False
        while True:
            handle = None
            try:
                with self.transactions.shared():
                    handle = self._handle
                    if handle is not None:
                        with handle.begin(write=write) as transaction:
                            return body(transaction)
                self._open()
            except self._lmdb.MapFullError:
                self._resize(handle, 2)
            except self._lmdb.MapResizedError:
                self._resize(handle, 0)
            except self._lmdb.ReadersFullError as error:
                if readers_swept:
                    raise self._failure(error) from error
                readers_swept = True
                self._sweep_readers()
            except self._lmdb.Error as error:
                with self.transactions.exclusive():
                    self._close_handle()
                raise self._failure(error) from error

    def _open(self) -> None:
        with self.transactions.exclusive():
            if self._handle is not None:
                return
            if self.is_unused:
                # A call that began before the last store was closed must not open the files for good.
                raise UnavailableError(f"the store {self.path} is closed. Make a new LmdbStore.")
            try:
                Path(self.path).mkdir(parents=True, exist_ok=True)
                handle = self._lmdb.open(
                    self.path,
                    map_size=self._map_bytes,
                    sync=self.sync,
                    metasync=self.sync,
                    max_readers=_MAX_READERS,
                    readahead=False,
                )
            except OSError as error:
                raise UnavailableError(
                    f"cannot make the folder {self.path} for LMDB: {error}. Choose another path or mend its rights."
                ) from error
            # Slots of readers that were killed would keep old pages alive forever.
            handle.reader_check()
            self._handle = handle

    def _resize(self, seen: Any, factor: int) -> None:
        """Multiply the map, or with factor 0 adopt the size that another process gave it."""
        with self.transactions.exclusive():
            if self._handle is None or self._handle is not seen:
                return
            wanted = self._handle.info()["map_size"] * factor
            try:
                self._handle.set_mapsize(wanted)
            except self._lmdb.Error as error:
                self._close_handle()
                raise self._failure(error) from error
            self._map_bytes = max(self._map_bytes, self._handle.info()["map_size"])

    def _sweep_readers(self) -> None:
        with self.transactions.shared():
            if self._handle is not None:
                self._handle.reader_check()

    def _close_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def _failure(self, error: Exception) -> CorruptionError | UnavailableError:
        lmdb = self._lmdb
        broken = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)
        if isinstance(error, broken):
            return CorruptionError(
                f"{self.path} is not a sound LMDB environment: {error}. Restore the folder, or remove it and "
                "upload again."
            )
        if isinstance(error, lmdb.MemoryError):
            return UnavailableError(
                f"the LMDB map of {self.path} does not fit into the address space of this process: {error}. Raise "
                "RLIMIT_AS (spark.executor.pyspark.memory), or drop old datasets."
            )
        return UnavailableError(
            f"LMDB in {self.path} failed: {error}. Nothing of this call was written; check space and rights of "
            "that disk and try again."
        )


_registry_lock = threading.RLock()
_registry: dict[str, Environment] = {}


def lease(holder: object, path: str, *, map_bytes: int, sync: bool) -> tuple[Environment, Callable[[], object]]:
    """Return the environment of `path` for `holder`, and a function that releases the lease.

    The lease is also released when `holder` is garbage-collected.

    Raises `OptionError` if the path is already open in this process with another `sync`.
    """
    with _registry_lock:
        environment = _registry.get(path)
        if environment is None:
            environment = _registry[path] = Environment(path, map_bytes=map_bytes, sync=sync)
        elif environment.is_unused:
            environment.sync = sync
        elif environment.sync != sync:
            raise OptionError(
                f"{path} is already open in this process with sync={environment.sync}, asked was sync={sync}. "
                "Close the other store or use the same option."
            )
        environment.count_released()
        environment.leases += 1
        return environment, weakref.finalize(holder, environment.release)


def _before_fork() -> None:
    _registry_lock.acquire()
    for environment in _registry.values():
        environment.transactions.acquire_exclusive()


def _after_fork_in_parent() -> None:
    for environment in _registry.values():
        environment.transactions.release_exclusive()
    _registry_lock.release()


def _after_fork_in_child() -> None:
    # Threads that waited for a lock when the process forked do not exist here: start with fresh ones.
    global _registry_lock  # noqa: PLW0603
    _registry_lock = threading.RLock()
    for environment in _registry.values():
        environment.start_anew()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _import_lmdb() -> ModuleType:
    try:
        import lmdb
    except ImportError as error:
        raise MissingDependencyError(
            "LmdbStore needs the package lmdb, which is not installed: pip install 'millpond[lmdb]'"
        ) from error
    module: ModuleType = lmdb
    return module
