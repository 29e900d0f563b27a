"""Blobs that wait: in memory up to a limit, beyond it in a file.

A state host takes all rows of a batch before it begins, and gives out nothing before it has
committed. So input and output wait, and a large batch must not have to fit into memory: what is
beyond the limit is written to a file and read back through a memory map, which the system can drop
pages of.

The file has no name from the start, so nothing is left behind whatever happens. It is written by
plain writes, never through the map: a full disk is an error of a write, and not a signal.
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
    """Byte strings in the order they were added, read any number of times after the last was added.

    `folder` gives the place of the file, and is asked only when there is one.

    >>> with Spool(Path.cwd, memory_bytes=4) as spool:
    ...     for blob in (b"abc", b"defg", b"h"):
    ...         spool.add(blob)
    ...     [bytes(blob) for blob in spool]
    [b'abc', b'defg', b'h']
    """

    def __init__(self, folder: Callable[[], Path], memory_bytes: int = MEMORY_BYTES) -> None:
        self._folder = folder
        self._room = memory_bytes
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
        """Keep one blob. An UnavailableError says that the disk does not take it."""
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
                f"a batch larger than {MEMORY_BYTES >> 20} MiB could not wait in a file in {self._folder()}: {error}. "
                "Free some space there, point TMPDIR elsewhere, or take smaller batches."
            ) from error
        self._lengths_in_file.append(len(blob))

    def __iter__(self) -> Iterator[memoryview]:
        """The blobs. Those in the file are views of a map, which lives as long as they do."""
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
        """Let go of memory and file. Idempotent."""
        self._in_memory = []
        if self._file is not None:
            self._file.close()
            self._file = None
            self._lengths_in_file = []
