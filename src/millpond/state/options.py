"""The options of keyed state, by Flink's names, parsed once and checked whole.

The invariant: what was written is what happens. An unknown name, a value of the wrong form or out of
range, and an option that the chosen backend would ignore are all refused, all in one error, before the
first record. Names and the words of choices are read in any case; a size is a number with a unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.options import Known, count, named, parsed, refuse_problems, size_bytes
from millpond.state.registry import BackendFactory, backend_factory, backend_name
from millpond.state.rocksdb_database import BLOCK_CACHE_BYTES, WRITE_BUFFER_BYTES

_ROCKSDB = "state.backend.rocksdb."


@dataclass(frozen=True, slots=True)
class StateOptions:
    """Where keyed state is held, what is cached of it, and where checkpoints go.

    Attributes:
        backend: the name under which the backend is registered.
        cache_max_entries: of the cache in front of the backend, over all states of a shard; 0 for no such limit.
        cache_max_bytes: of the same cache; 0 for no such limit. Without any limit there is no cache.
        checkpoint_storage: a path or URI; None where whoever runs the operator says it.
        rocksdb_local_dir: the folder in which RocksDB's folders are made; None for the caller's.
        write_buffer_bytes: of each of RocksDB's buffers in memory.
        block_cache_bytes: of RocksDB's cache of what it read from files.
        factory: makes the backend.

    >>> StateOptions.parse({"state.backend.type": "RocksDB", "STATE.backend.cache.max-entries-num": "1000"}).backend
    'rocksdb'
    >>> StateOptions.parse({"state.backend.typ": "heap", "state.backend.cache.max-bytes": "many"})
    Traceback (most recent call last):
    millpond.errors.OptionError: state options:
    - 'state.backend.typ' is unknown; did you mean 'state.backend.type'?
    - 'state.backend.cache.max-bytes': expected a size such as '64mb', in b, kb, mb, gb or tb, got 'many'
    """

    backend: str = "heap"
    cache_max_entries: int = 0
    cache_max_bytes: int = 0
    checkpoint_storage: str | None = None
    rocksdb_local_dir: Path | None = None
    write_buffer_bytes: int = WRITE_BUFFER_BYTES
    block_cache_bytes: int = BLOCK_CACHE_BYTES
    factory: BackendFactory = field(default=backend_factory("heap"), repr=False, compare=False)

    @classmethod
    def parse(cls, options: "Mapping[str, Any] | StateOptions") -> "StateOptions":
        """Options from their names and values; `OptionError` lists everything that is wrong."""
        if isinstance(options, StateOptions):
            return options
        problems: list[str] = []
        given = named(options, _OPTIONS, problems)
        values = parsed(given, _OPTIONS, problems)
        backend = values.get("backend", "heap")
        # Where the backend itself is wrong, which options it ignores is not known.
        if "backend" in values or "state.backend.type" not in given:
            problems.extend(
                f"{name!r} has no effect with state.backend.type = {backend}; remove it or choose rocksdb"
                for name in given
                if name.startswith(_ROCKSDB) and backend != "rocksdb"
            )
        refuse_problems("state options", problems)
        return cls(**values, factory=backend_factory(backend))


def _place(value: Any) -> str:
    text = str(value).strip()
    if not text:
        raise ValueError("a path or URI")
    return text


_OPTIONS: Known = {
    "state.backend.type": ("backend", backend_name),
    "state.backend.cache.max-entries-num": ("cache_max_entries", count),
    "state.backend.cache.max-bytes": ("cache_max_bytes", size_bytes()),
    "state.checkpoint-storage": ("checkpoint_storage", _place),
    "state.backend.rocksdb.local-dir": ("rocksdb_local_dir", lambda value: Path(_place(value)).absolute()),
    "state.backend.rocksdb.write-buffer-size": ("write_buffer_bytes", size_bytes(64 << 10, 4 << 30)),
    "state.backend.rocksdb.block-cache-size": ("block_cache_bytes", size_bytes(64 << 10)),
}
