"""Encoded segments that wait until their version is stored: in memory up to a limit, then in a file.

A full checkpoint is as large as the state, and a version must be stored whole or not at all. So its segments are
encoded one by one, and wait here in bounded memory until the manifest is made.

The file never has a name, so nothing is left behind whatever happens. It is freed once nothing refers to the spool or
one of its segments. What it gives back is compared with a checksum in memory, so that no altered segment is stored as
a part of a checkpoint.
"""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import xxhash

from millpond.errors import CorruptionError, UnavailableError
from millpond.state.checkpoint.format.segment import checksum_of

MEMORY_BYTES = 8 << 20
"""The bytes that one spool keeps in memory."""


@dataclass(frozen=True)
class Part:
    """One encoded segment that no manifest names yet.

    Attributes:
        state: the state whose cells it holds.
        rows: how many cells.
        first_group: the lowest key group among them.
        last_group: the highest.
        length: of the encoded bytes.
        checksum: the one in their header.
        read: returns the encoded bytes.
    """

    state: str
    rows: int
    first_group: int
    last_group: int
    length: int
    checksum: int
    read: Callable[[], bytes]

    @staticmethod
    def of(state: str, rows: int, first_group: int, last_group: int, data: bytes) -> "Part":
        """Create a part whose bytes are in memory."""
        return Part(state, rows, first_group, last_group, len(data), checksum_of(data), lambda: data)


class Segments(Mapping[int, bytes]):
    """Segments by id, from functions that read them: on each access, so they need not be in memory together."""

    def __init__(self, reads: Mapping[int, Callable[[], bytes]]) -> None:
        self._reads = reads

    def __getitem__(self, segment_id: int) -> bytes:
        return self._reads[segment_id]()

    def __iter__(self) -> Iterator[int]:
        return iter(self._reads)

    def __len__(self) -> int:
        return len(self._reads)


class SegmentSpool:
    """Keeps the bytes of segments. One thread adds; any may read.

    >>> spool = SegmentSpool(memory_bytes=4)
    >>> kept = [spool.keep(data) for data in (b"abc", b"defg", b"h")]
    >>> [read() for read in kept]
    [b'abc', b'defg', b'h']
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._room = memory_bytes
        self._file: int | None = None
        self._end = 0

    def keep(self, data: bytes) -> Callable[[], bytes]:
        """Keep bytes, and return a function that reads them. Raises UnavailableError if the disk cannot take them."""
        if self._file is None and len(data) <= self._room:
            self._room -= len(data)
            return lambda: data
        start, length = self._end, len(data)
        try:
            file = self._opened()
            written = 0
            while written < length:
                written += os.pwrite(file, memoryview(data)[written:], start + written)
        except OSError as error:
            raise UnavailableError(
                f"the segments of a checkpoint could not wait in a file in {tempfile.gettempdir()}: {error}. Free "
                "some space there, or point TMPDIR to a larger disk."
            ) from error
        self._end += length
        checksum = xxhash.xxh3_64_intdigest(data)
        return lambda: self._read(start, length, checksum)

    def kept(self, part: Part) -> Part:
        """Return the same part with its bytes in the spool."""
        return replace(part, read=self.keep(part.read()))

    def _opened(self) -> int:
        if self._file is None:
            with tempfile.TemporaryFile(buffering=0) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)
        return self._file

    def _read(self, start: int, length: int, checksum: int) -> bytes:
        assert self._file is not None  # noqa: S101 - for the type checker; something was written to it
        data = os.pread(self._file, length, start)
        if len(data) != length or xxhash.xxh3_64_intdigest(data) != checksum:
            raise CorruptionError(
                f"a segment that waited in a file in {tempfile.gettempdir()} is not as it was written: {len(data)} "
                f"bytes, expected {length}. The checkpoint does not have it yet: restore."
            )
        return data
