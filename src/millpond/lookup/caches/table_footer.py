"""The footer of a mapped table's file: its last bytes, which are read first.

    sizes from which the parts are found | checksum | version | whether keys are unique | width | magic

The checksum covers every other byte of the file. It is compared before the sizes are used, because an altered size
would lead to wrong rows or outside the map. A file never changes, so a process checks it only once, and then
recognizes it by its device, inode, size and modification time.
"""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

from millpond.errors import CorruptionError

_MAGIC = b"MPLOOKUP"
_VERSION = 3
_NUMBERS = struct.Struct("<6Q")
_CHECKSUM = struct.Struct("<I")
_TAIL = struct.Struct("<B?H8s")
_MOST_CHECKED = 1024
_PIECE_BYTES = 4 << 20

_checked: set[tuple[int, int, int, int]] = set()
"""Device, inode, size and modification time of the files that this process has checked."""


class Footer(NamedTuple):
    """The sizes that a reader needs to find the parts of a file.

    Attributes:
        columns: the number of columns.
        keys: the number of distinct keys.
        places: the number of rows.
        seed: the seed of the hash.
        bits: the number of bits of a hash that choose a bucket.
        unique: whether every key has one row.
        width: the width of a row number, in bytes.
    """

    columns: int
    keys: int
    places: int
    seed: int
    bits: int
    unique: bool
    width: int


FOOTER_BYTES = _NUMBERS.size + _CHECKSUM.size + _TAIL.size


class SummedFile:
    """A file being written, with the checksum of the bytes written so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.checksum = 0

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._file.closed

    def write(self, data: Any) -> int:
        """Write a bytes-like object."""
        self.checksum = zlib.crc32(data, self.checksum)
        return self._file.write(data)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._file.tell()

    def flush(self) -> None:
        """Make the bytes written so far visible to readers of the file."""
        self._file.flush()


def write_footer(file: SummedFile, footer: Footer) -> None:
    """Write the footer. Nothing may be written after it."""
    size = file.tell() + FOOTER_BYTES
    file.write(_NUMBERS.pack(size, footer.columns, footer.keys, footer.places, footer.seed, footer.bits))
    tail = _TAIL.pack(_VERSION, footer.unique, footer.width, _MAGIC)
    file.write(_CHECKSUM.pack(zlib.crc32(tail, file.checksum)) + tail)


def read_footer(path: Path, mapped: memoryview) -> Footer:
    """Return the footer of a file.

    Raises:
        CorruptionError: the file has another format, version or length than was written.
    """
    size = len(mapped)
    if size < FOOTER_BYTES:
        raise CorruptionError(not_whole(path, f"it has {size} bytes"))
    version, unique, width, magic = _TAIL.unpack_from(mapped, size - _TAIL.size)
    if magic != _MAGIC or version != _VERSION:
        raise CorruptionError(not_whole(path, f"it ends with {magic!r}, version {version}, expected {_VERSION}"))
    written, columns, keys, places, seed, bits = _NUMBERS.unpack_from(mapped, size - FOOTER_BYTES)
    if written != size:
        raise CorruptionError(not_whole(path, f"it has {size} bytes instead of {written}"))
    return Footer(columns, keys, places, seed, bits, unique, width)


def is_checked(found: os.stat_result) -> bool:
    """Return whether this process has checked a file."""
    return _identity(found) in _checked


def remember_checked(found: os.stat_result) -> None:
    """Remember that a file was checked."""
    if len(_checked) >= _MOST_CHECKED:
        _checked.clear()
    _checked.add(_identity(found))


def check_sum(path: Path, mapped: memoryview, let_go: Callable[[], None] = lambda: None) -> None:
    """Compare the checksum of a file. `let_go` is called after every piece.

    Raises:
        CorruptionError: a byte of the file was altered.
    """
    at = len(mapped) - _TAIL.size - _CHECKSUM.size
    (expected,) = _CHECKSUM.unpack_from(mapped, at)
    checksum = 0
    for start in range(0, at, _PIECE_BYTES):
        checksum = zlib.crc32(mapped[start : min(start + _PIECE_BYTES, at)], checksum)
        let_go()
    if zlib.crc32(mapped[-_TAIL.size :], checksum) != expected:
        raise CorruptionError(not_whole(path, "its checksum does not fit"))


def not_whole(path: Path, what: str) -> str:
    """Return the message for a file that cannot be read."""
    return (
        f"lookup table file {path}: not a whole file of this version ({what}); reload the table, which writes another"
    )


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
