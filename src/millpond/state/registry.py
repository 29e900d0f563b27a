"""State backends by name: the two that are here, and those that users register.

A backend's factory travels with the options of an operator to wherever its shards live, so a backend
that is registered in a driver needs no registering elsewhere: a function of an installed module, or one
that cloudpickle can take along, will do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond.errors import OptionError
from millpond.metrics import NO_METRICS, Recorder
from millpond.options import nearest
from millpond.state.backend import KeyedStateBackend
from millpond.state.heap import HeapBackend

if TYPE_CHECKING:
    from millpond.state.options import StateOptions

BackendFactory: TypeAlias = "Callable[[StateOptions, range, Path], KeyedStateBackend]"
"""Makes a backend for some key groups. The folder, which need not exist, is the backend's alone: it makes it
where it has files to keep, and removes it when it is closed."""


def register_backend(name: str, factory: BackendFactory) -> None:
    """Make a backend known as `state.backend.type = name`, in any case.

    Raises:
        OptionError: the name is taken.

    >>> register_backend("Heap", lambda options, key_groups, folder: HeapBackend(key_groups))
    Traceback (most recent call last):
    millpond.errors.OptionError: a state backend 'heap' is registered already; give this one another name.
    """
    lower = name.strip().lower()
    if not lower:
        raise OptionError("a state backend needs a name that is not empty.")
    if lower in _FACTORIES:
        raise OptionError(f"a state backend {lower!r} is registered already; give this one another name.")
    _FACTORIES[lower] = factory


def backend_name(value: Any) -> str:
    """The name of a registered backend, read in any case; the parser of `state.backend.type`."""
    lower = str(value).strip().lower()
    if lower not in _FACTORIES:
        near = nearest(lower, tuple(_FACTORIES))
        raise ValueError(f"a registered backend, one of {', '.join(_FACTORIES)} ({near})")
    return lower


def backend_factory(name: str) -> BackendFactory:
    """What makes the backend of that name."""
    return _FACTORIES[name]


def open_backend(
    options: "StateOptions", key_groups: range, folder: Path, recorder: Recorder = NO_METRICS
) -> KeyedStateBackend:
    """The backend of a shard, behind a cache where the options give it a size.

    Args:
        options: what to open.
        key_groups: of the shard.
        folder: for this backend alone. With `state.backend.rocksdb.local-dir` its name is taken, in that folder.
        recorder: hears of the cache's hits, see `LruStateCache`.
    """
    backend = options.factory(options, key_groups, folder)
    if not (options.cache_max_entries or options.cache_max_bytes):
        return backend
    from millpond.state.cached.lru import LruStateCache

    return LruStateCache(
        backend,
        max_entries=options.cache_max_entries or None,
        max_bytes=options.cache_max_bytes or None,
        recorder=recorder,
    )


def _heap(_options: "StateOptions", key_groups: range, _folder: Path) -> KeyedStateBackend:
    return HeapBackend(key_groups)


def _rocksdb(options: "StateOptions", key_groups: range, folder: Path) -> KeyedStateBackend:
    from millpond.state.rocksdb import RocksDbBackend

    return RocksDbBackend(
        key_groups,
        folder if options.rocksdb_local_dir is None else options.rocksdb_local_dir / folder.name,
        write_buffer_bytes=options.write_buffer_bytes,
        block_cache_bytes=options.block_cache_bytes,
    )


_FACTORIES: dict[str, BackendFactory] = {"heap": _heap, "rocksdb": _rocksdb}
