"""A queue of blobs: in memory up to a limit, and in a file beyond it.

A state host receives all rows of a batch before it runs, and sends no output before it has committed. So
input and output wait here, and a large batch need not fit into memory. Blobs beyond the limit are written
to a file and read back through a memory map, whose pages the system can drop.

The file never has a name, so nothing is left behind whatever happens. It is written with plain writes and
not through the map: a full disk is then an error of the write, and not a signal.
"""

import mmap
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from millpond.errors import UnavailableError

MEMORY_BYTES = 256 << 20


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
        self._lengths_in_file: list[int] = []
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
        self._lengths_in_file.append(len(blob))

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the blobs. Those in the file are views of a memory map, which lives as long as they do."""
        yield from (memoryview(blob) for blob in self._in_memory)
        if self._file is None:
            return
        self._file.flush()
        mapped = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        start = 0
        for length in self._lengths_in_file:
            yield mapped[start : start + length]
            start += length

    def close(self) -> None:
        """Free memory and file. Idempotent."""
        self._in_memory = []
        if self._file is not None:
            self._file.close()
            self._file = None
            self._lengths_in_file = []
