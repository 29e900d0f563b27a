"""The RocksDB backend's options by name, and the settings they are parsed into."""

from dataclasses import dataclass
from pathlib import Path

from millpond.options import Known, place, size_bytes
from millpond.state.rocksdb.database import BLOCK_CACHE_BYTES, WRITE_BUFFER_BYTES


@dataclass(frozen=True, slots=True)
class RocksDbSettings:
    """Settings of a RocksDB backend.

    Attributes:
        local_dir: the folder in which RocksDB's folders are created; None for the caller's.
        write_buffer_bytes: size of each of RocksDB's buffers in memory.
        block_cache_bytes: size of RocksDB's cache of the blocks it read from files.
    """

    local_dir: Path | None = None
    write_buffer_bytes: int = WRITE_BUFFER_BYTES
    block_cache_bytes: int = BLOCK_CACHE_BYTES


ROCKSDB_OPTIONS: Known = {
    "state.backend.rocksdb.local-dir": ("local_dir", lambda value: Path(place(value)).absolute()),
    "state.backend.rocksdb.write-buffer-size": ("write_buffer_bytes", size_bytes(64 << 10, 4 << 30)),
    "state.backend.rocksdb.block-cache-size": ("block_cache_bytes", size_bytes(64 << 10)),
}
