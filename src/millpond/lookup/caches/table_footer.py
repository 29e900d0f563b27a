"""The seal of a mapped table's file: its last bytes, which are read first.

    numbers that say where the parts lie | checksum | version | whether keys are unique | width | magic

The checksum covers every other byte of the file. It is compared before any of the numbers is used, since
one that is altered would lead to wrong rows, or out of the map. A process checks a file once: the file
never changes, so it is known by its inode, size and time from then on.
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
"""The files that this process has checked."""


class Footer(NamedTuple):
    """What a reader must know of a file before it reads a part of it.

    Attributes:
        columns: how many columns it has.
        keys: how many distinct keys.
        places: how many rows its keys have together.
        seed: of the hash.
        bits: how many bits of a hash choose a bucket.
        unique: whether every key has one row.
        width: of a row's number, in bytes.
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
    """A file being written, with the checksum of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.checksum = 0

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._file.closed

    def write(self, data: Any) -> int:
        """Write bytes, or anything that lies in memory as bytes do."""
        self.checksum = zlib.crc32(data, self.checksum)
        return self._file.write(data)

    def tell(self) -> int:
        """How many bytes were written."""
        return self._file.tell()

    def flush(self) -> None:
        """Let readers of the file see what was written."""
        self._file.flush()


def write_footer(file: SummedFile, footer: Footer) -> None:
    """Seal a file: nothing may be written after it."""
    size = file.tell() + FOOTER_BYTES
    file.write(_NUMBERS.pack(size, footer.columns, footer.keys, footer.places, footer.seed, footer.bits))
    tail = _TAIL.pack(_VERSION, footer.unique, footer.width, _MAGIC)
    file.write(_CHECKSUM.pack(zlib.crc32(tail, file.checksum)) + tail)


def read_footer(path: Path, mapped: memoryview) -> Footer:
    """The footer of a file of this version that is as long as it was written.

    Raises:
        CorruptionError: it is another.
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
    """Whether this process has checked a file."""
    return _identity(found) in _checked


def remember_checked(found: os.stat_result) -> None:
    """Check this file no more."""
    if len(_checked) >= _MOST_CHECKED:
        _checked.clear()
    _checked.add(_identity(found))


def check_sum(path: Path, mapped: memoryview, let_go: Callable[[], None] = lambda: None) -> None:
    """Compare the checksum of a file; `let_go` is called after every piece that was read.

    Raises:
        CorruptionError: a byte of it is another than was written.
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
    """What an error says of a file that cannot be read."""
    return (
        f"lookup table file {path}: not a whole file of this version ({what}); reload the table, which writes another"
    )


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
