"""The size of RocksDB's write buffers, fitted to the entries in them.

A write buffer is a skip list. Each read and write walks it, and each step waits for memory if the list is larger than
the processor's caches. So with small entries, such as counts, a small buffer is faster: more entries fit in a buffer
than compaction needs to work well. With large entries the buffer is large, because each flush of a small one is
compacted again and again. `benchmarks/write_buffer.py` measures both.
"""

import contextlib
from typing import Any, Final

SMALL_BYTES: Final = 8 << 20
LARGE_BYTES: Final = 64 << 20
BUFFERS: Final = 2
"""One is filled while another is flushed."""

_SMALL_ENTRY_BYTES = 128
"""Up to this mean size, RocksDB's own bytes in the buffer included, entries are small."""
_FULL_ENOUGH_BYTES = SMALL_BYTES // 2
"""RocksDB counts its memory in blocks of 1 MiB, which says little about the entries of an emptier buffer."""
_ENTRIES = "rocksdb.num-entries-active-mem-table"
_BYTES = "rocksdb.cur-size-active-mem-table"


class WriteBuffer:
    """The write buffers' size of one database.

    Args:
        fixed_bytes: the size that a user chose; None for one that is fitted.

    Attributes:
        size_bytes: of one buffer, now.
    """

    def __init__(self, fixed_bytes: int | None) -> None:
        self._is_fitted = fixed_bytes is None
        self.size_bytes = fixed_bytes or SMALL_BYTES

    def set_up(self, options: Any) -> None:
        """Set the size in the options of a database that is not open yet."""
        options.set_write_buffer_size(self.size_bytes)
        options.set_max_write_buffer_number(BUFFERS)
        options.set_max_bytes_for_level_base(_level_base(self.size_bytes))

    def fit(self, handle: Any) -> None:
        """Fit the size to the entries that are in the buffer of an open database. Cheap: it is called per version."""
        if not self._is_fitted:
            return
        used = handle.property_int_value(_BYTES) or 0
        if used < _FULL_ENOUGH_BYTES:
            return
        is_small = used <= (handle.property_int_value(_ENTRIES) or 0) * _SMALL_ENTRY_BYTES
        wanted = SMALL_BYTES if is_small else LARGE_BYTES
        if wanted != self.size_bytes:
            sizes = {"write_buffer_size": str(wanted), "max_bytes_for_level_base": str(_level_base(wanted))}
            # On a full disk the sizes change, but the copy of them in a file, which nobody reads, cannot be written.
            with contextlib.suppress(Exception):
                handle.set_options(sizes)
            self.size_bytes = wanted


def _level_base(buffer_bytes: int) -> int:
    """Return the size of the first sorted level. RocksDB compacts four flushed buffers into it at a time."""
    return max(4 * buffer_bytes, 4 * SMALL_BYTES)
