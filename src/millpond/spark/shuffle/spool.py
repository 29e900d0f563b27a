"""A queue of blobs: in memory up to a limit, and in a file beyond it.

A state host receives all rows of a batch before it runs, and sends no output before it has committed. So
input and output wait here, and a large batch need not fit into memory. Blobs beyond the limit are written
to a file and read back through a memory map, whose pages the system can drop. Their checksums stay in memory, and are
compared at every reading.

The file never has a name, so nothing is left behind whatever happens. It is written with plain writes and
not through the map: a full disk is then an error of the write, and not a signal.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import xxhash

from millpond.errors import CorruptionError, UnavailableError

MEMORY_BYTES = 256 << 20

_checksum_of = xxhash.xxh3_64_intdigest


class Spool:
    """Byte strings in the order they were added. They can be read any number of times after the last was added.

    `folder` returns the folder for the file. It is called only when a file is needed.

    >>> with Spool(Path.cwd, memory_bytes=4) as spool:
    ...     for blob in (b"abc", b"defg", b"h"):
    ...         spool.add(blob)
    ...     [bytes(blob) for blob in spool]
    [b'abc', b'defg', b'h']
    """

    def __init__(self, folder: Callable[[], Path], memory_bytes: int = MEMORY_BYTES) -> None:
        self._folder = folder
        self._memory_bytes = self._room = memory_bytes
        self._in_memory: list[bytes | memoryview] = []
        self._in_file: list[tuple[int, int]] = []
        """Length and checksum of each blob in the file."""
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, blob: bytes | memoryview) -> None:
        """Keep one blob.

        Raises:
            UnavailableError: the disk does not take it.
        """
        if self._file is None and len(blob) <= self._room:
            self._in_memory.append(blob)
            self._room -= len(blob)
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder())  # noqa: SIM115 - closed with the spool
            self._file.write(blob)
        except OSError as error:
            raise UnavailableError(
                f"data beyond the {self._memory_bytes:,} bytes that are kept in memory could not be written to a file "
                f"in {self._folder()}: {error}. Free some space there, point TMPDIR elsewhere, or take smaller batches."
            ) from error
        self._in_file.append((len(blob), _checksum_of(blob)))

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the blobs. Those in the file are views of a memory map, which lives as long as they do.

        Raises:
            CorruptionError: a blob in the file is not as it was written.
        """
        yield from (memoryview(blob) for blob in self._in_memory)
        if self._file is None:
            return
        self._file.flush()
        length_in_file = sum(length for length, _ in self._in_file)
        if os.fstat(self._file.fileno()).st_size != length_in_file:
            raise self._damaged(f"it should have {length_in_file:,} bytes")
        mapped = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        start = 0
        for length, checksum in self._in_file:
            blob = mapped[start : start + length]
            if _checksum_of(blob) != checksum:
                raise self._damaged(f"the {length:,} bytes from byte {start:,} on are not those that were written")
            yield blob
            start += length

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(
            f"the file in {self._folder()} with the data beyond the {self._memory_bytes:,} bytes that are kept in "
            f"memory is damaged: {what}. It is temporary, so a retry of the task writes another. If it happens again, "
            "check the disk, or point TMPDIR elsewhere."
        )

    def close(self) -> None:
        """Free memory and file. Idempotent."""
        self._in_memory = []
        if self._file is not None:
            self._file.close()
            self._file = None
            self._in_file = []
