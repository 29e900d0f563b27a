"""One open LMDB environment per process and path: opening, growing, failing, forking.

Place on the data path: under `LmdbStore`, which knows what the rows mean; this module only knows how
to run a transaction. It holds what LMDB leaves to its users [1]:

- *An environment may be open once per process.* Its file locks belong to the process, and a second
  handle that closes releases the first one's. So all stores on a path share one `Environment`, counted
  by leases.
- *It may not be used after fork.* A child finds the registry empty and opens its own. It keeps the
  inherited handle referenced for ever: closing it would release the child's own locks.
- *The map has a size.* A write that does not fit (MapFull) is undone; the map is doubled and the write
  is run again. A map that another process has grown (MapResized) is adopted. Both need the process to
  have no transaction open, so transactions pass a gate that a resize closes: nobody waits for a lock
  while a commit is being synced, except during a resize.
- *After some failures it refuses all work* (a failed write of the meta page). So after any failure
  that is not understood, the handle is closed, and the next call opens a new one.

Invariant: a transaction body may run more than once, and takes effect exactly once or not at all.

[1] http://www.lmdb.tech/doc/ (Caveats), https://lmdb.readthedocs.io
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from millpond.errors import CorruptionError, MissingDependencyError, OptionError, UnavailableError

_T = TypeVar("_T")

_MAX_READERS = 1022
"""Read transactions at one time over all processes; LMDB fixes it when the lock file is made."""


class Gate:
    """Lets any number of transactions in, or one resize alone.

    >>> gate = Gate()
    >>> with gate.shared(), gate.shared():
    ...     gate.users
    2
    """

    def __init__(self) -> None:
        self.users = 0
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Be inside with others; waits while a resize is going on."""
        with self._changed:
            while self._closed:
                self._changed.wait()
            self.users += 1
        try:
            yield
        finally:
            with self._changed:
                self.users -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be inside alone; waits until all others have left."""
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._closed = True
            while self.users:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


class Environment:
    """The one handle of this process on the LMDB files in `path`; see the module's text.

    Get it from `lease`. `read` and `write` run a body in one transaction, from any thread.
    """

    def __init__(self, path: str, *, map_bytes: int, sync: bool) -> None:
        self.path = path
        self.sync = sync
        self.pid = os.getpid()
        self.leases = 0
        self._map_bytes = map_bytes
        self._lmdb = _import_lmdb()
        self._gate = Gate()
        self._handle: Any = None
        self._retired = False

    def read(self, body: Callable[[Any], _T]) -> _T:
        """Run `body(transaction)` on one snapshot."""
        return self._run(body, write=False)

    def write(self, body: Callable[[Any], _T]) -> _T:
        """Run `body(transaction)` and commit; if it raises, nothing of it is kept."""
        return self._run(body, write=True)

    def retire(self) -> None:
        """Wait for open transactions and close the handle for good. May be called twice."""
        with self._gate.alone():
            self._retired = True
            self._close_handle()

    def _run(self, body: Callable[[Any], _T], *, write: bool) -> _T:
        readers_swept = False
        while True:
            handle = None
            try:
                with self._gate.shared():
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
                with self._gate.alone():
                    self._close_handle()
                raise self._failure(error) from error

    def _open(self) -> None:
        with self._gate.alone():
            if self._retired:
                raise UnavailableError(f"the store {self.path} was closed. Make a new LmdbStore.")
            if self._handle is not None:
                return
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
            # Slots of readers that were killed would keep old pages alive for ever.
            handle.reader_check()
            self._handle = handle

    def _resize(self, seen: Any, factor: int) -> None:
        """Multiply the map, or with factor 0 adopt the size that another process gave it."""
        with self._gate.alone():
            if self._handle is None or self._handle is not seen:
                return
            wanted = self._handle.info()["map_size"] * factor
            try:
                self._handle.set_mapsize(wanted)
            except self._lmdb.Error as error:
                self._close_handle()
                raise UnavailableError(
                    f"the LMDB map of {self.path} cannot grow to {wanted} bytes: {error}. The map counts as address "
                    "space: raise RLIMIT_AS (spark.executor.pyspark.memory), or drop old datasets."
                ) from error
            self._map_bytes = max(self._map_bytes, self._handle.info()["map_size"])

    def _sweep_readers(self) -> None:
        with self._gate.shared():
            if self._handle is not None:
                self._handle.reader_check()

    def _close_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None and self.pid == os.getpid():
            handle.close()

    def _failure(self, error: Exception) -> CorruptionError | UnavailableError:
        lmdb = self._lmdb
        broken = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)
        if isinstance(error, broken):
            return CorruptionError(
                f"{self.path} is not a sound LMDB environment: {error}. Restore the folder, or remove it and "
                "upload again."
            )
        return UnavailableError(
            f"LMDB in {self.path} failed: {error}. Nothing of this call was written; check space and rights of "
            "that disk and try again."
        )


_registry_lock = threading.RLock()
_registry: dict[str, Environment] = {}
_inherited: list[Environment] = []


def lease(holder: object, path: str, *, map_bytes: int, sync: bool) -> tuple[Environment, Callable[[], object]]:
    """The environment of `path` for `holder`, and what gives it back (also done when holder is collected).

    Raises `OptionError` if the path is already open in this process with another `sync`.
    """
    with _registry_lock:
        environment = _registry.get(path)
        if environment is None:
            environment = _registry[path] = Environment(path, map_bytes=map_bytes, sync=sync)
        elif environment.sync != sync:
            raise OptionError(
                f"{path} is already open in this process with sync={environment.sync}, asked was sync={sync}. "
                "Close the other store or use the same option."
            )
        environment.leases += 1
        return environment, weakref.finalize(holder, _give_back, environment)


def _give_back(environment: Environment) -> None:
    with _registry_lock:
        if environment.pid != os.getpid():
            return
        environment.leases -= 1
        if environment.leases == 0:
            _registry.pop(environment.path, None)
            environment.retire()


def _forget_after_fork() -> None:
    global _registry_lock  # noqa: PLW0603 - another thread may have held it when the process forked
    _registry_lock = threading.RLock()
    _inherited.extend(_registry.values())
    _registry.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def _import_lmdb() -> ModuleType:
    try:
        import lmdb
    except ImportError as error:
        raise MissingDependencyError(
            "LmdbStore needs the package lmdb, which is not installed: pip install 'millpond[lmdb]'"
        ) from error
    module: ModuleType = lmdb
    return module
