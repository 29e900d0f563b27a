"""Timers on disk, as *runs*: files that are written once in the order of time, and merged as they are read.

A timer is needed once more, when its time comes, and all timers are needed in one order. So they need no tree. What is
too much for memory is sorted and written as a run, and the earliest timer is the earliest among the next ones of all
runs. When there are many runs of one level, they are merged into one. So each timer is rewritten only a few times,
however many there are, and few files are open.

A run has no name, so its space is freed with the process, or with the last cursor that reads it. It is read one block
at a time, and memory holds one block of each run.

Invariant: a run never changes. So a copy of the cursors is a snapshot, whatever is read and written afterwards.

Source: Knuth, The Art of Computer Programming, volume 3, 5.4 (external sorting).
"""

import heapq
import os
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Self

import msgspec
import xxhash

from millpond.errors import CorruptionError, UnavailableError

Entry = tuple[int, int, int, bytes]
"""A timer: time in ms, number, key group, key. No two have the same number."""

BLOCK_ENTRIES = 512
"""Entries of a run that are read, and held in memory, at once."""

MERGED_RUNS = 16
"""Number of runs of one level that are merged into one."""

_HEADER = struct.Struct(">IQ")
"""The header of a block: how many bytes follow, and their xxh64."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Entry]).decode


class Run:
    """A file of entries in their order, in the first of some folders that accepts it.

    Args:
        folders: where it may be. They are created if necessary.
        entries: returns an iterator over the entries. Called once for each folder that is tried.

    Raises:
        OSError: no folder accepts it.
    """

    __slots__ = ("__weakref__", "_file", "entries", "folder", "size")

    def __init__(self, folders: Sequence[Path], entries: Callable[[], Iterator[Entry]]) -> None:
        for remaining, folder in zip(range(len(folders) - 1, -1, -1), folders, strict=True):
            try:
                self._write(folder, entries())
            except OSError:
                if not remaining:
                    raise
            else:
                return

    def _write(self, folder: Path, entries: Iterator[Entry]) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.entries = 0
        with tempfile.TemporaryFile(dir=folder) as file:
            while block := list(islice(entries, BLOCK_ENTRIES)):
                self.entries += len(block)
                data = _encode(block)
                file.write(_HEADER.pack(len(data), xxhash.xxh64_intdigest(data)) + data)
            file.flush()
            self.folder, self.size = folder, file.tell()
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)

    def block(self, offset: int) -> tuple[list[Entry], int]:
        """Return the entries of a block, and the position of the next block.

        Raises:
            UnavailableError: the file cannot be read.
            CorruptionError: the block is not as it was written.
        """
        start = offset + _HEADER.size
        try:
            length, checksum = _HEADER.unpack(os.pread(self._file, _HEADER.size, offset))
            # An impossible length is not read, because memory would be allocated for it.
            data = b"" if length > self.size - start else os.pread(self._file, length, start)
            entries = _checked(data, checksum)
        except OSError as error:
            raise UnavailableError(
                f"the timers that were spilled to {self.folder} could not be read: {error}. See to that disk; the "
                "checkpoint has them."
            ) from error
        except (struct.error, ValueError) as error:
            raise CorruptionError(
                f"the timers that were spilled to {self.folder} are damaged: {error}. They are only a copy of what the "
                "checkpoint has: restore."
            ) from error
        return entries, start + length


def _checked(data: bytes, checksum: int) -> list[Entry]:
    """Return the entries of a block. Raises ValueError if they are not those that were written."""
    if xxhash.xxh64_intdigest(data) != checksum:
        raise ValueError("the checksum of a block is another one")
    return _decode(data)


class Cursor:
    """A position in a run. `level` says how often its entries were merged."""

    __slots__ = ("_block", "_offset", "_position", "_run", "level")

    def __init__(
        self, run: Run, level: int = 0, block: Sequence[Entry] = (), position: int = 0, offset: int = 0
    ) -> None:
        self.level = level
        self._run = run
        self._block = block
        self._position = position
        self._offset = offset

    def next(self) -> Entry | None:
        """Return the entry at this position and advance; None at the end."""
        if self._position == len(self._block):
            if self._offset == self._run.size:
                return None
            self._block, self._offset = self._run.block(self._offset)
            self._position = 0
        self._position += 1
        return self._block[self._position - 1]

    def copy(self) -> Self:
        """Return another cursor at this position."""
        return type(self)(self._run, self.level, self._block, self._position, self._offset)

    def __len__(self) -> int:
        """Return the number of entries in memory."""
        return len(self._block)


class Runs:
    """All entries on disk in their order, over all runs."""

    __slots__ = ("_folders", "_fronts")

    def __init__(self, folders: Sequence[Path], fronts: Sequence[tuple[Entry, Cursor]] = ()) -> None:
        self._folders = folders
        # A heap of the next entry of each run. Numbers differ, so cursors are never compared.
        self._fronts = list(fronts)

    def __bool__(self) -> bool:
        return bool(self._fronts)

    def in_memory(self) -> int:
        """Return the number of entries in memory."""
        return sum(len(cursor) for _, cursor in self._fronts)

    def peek(self) -> Entry | None:
        """Return the first entry, or None."""
        return self._fronts[0][0] if self._fronts else None

    def pop(self) -> None:
        """Advance to the next entry."""
        _, cursor = self._fronts[0]
        entry = cursor.next()
        if entry is None:
            heapq.heappop(self._fronts)
        else:
            heapq.heapreplace(self._fronts, (entry, cursor))

    def add(self, entries: Sequence[Entry]) -> None:
        """Write more entries, which are in order, as a run. Then merge runs if there are many of one level.

        Raises:
            OSError: no disk accepts them. Nothing has changed.
        """
        self.write(lambda: iter(entries))
        with suppress(OSError):  # runs that could not be merged are read as they are
            level = 0
            while len(merged := [front for front in self._fronts if front[1].level == level]) >= MERGED_RUNS:
                run = Run(self._folders, partial(_merged, merged))
                self._fronts = [front for front in self._fronts if front[1].level != level]
                heapq.heapify(self._fronts)
                level += 1
                self._put(Cursor(run, level))

    def write(self, entries: Callable[[], Iterator[Entry]]) -> int:
        """Write more entries as one run. They are in order, and may not fit into memory. Return their number.

        Raises:
            OSError: no disk accepts them. Nothing has changed.
        """
        run = Run(self._folders, entries)
        self._put(Cursor(run))
        return run.entries

    def copy(self) -> "Runs":
        """Return the same entries, for an independent iteration."""
        return Runs(self._folders, [(entry, cursor.copy()) for entry, cursor in self._fronts])

    def __iter__(self) -> Iterator[Entry]:
        """Yield all entries, and remove them."""
        while (entry := self.peek()) is not None:
            self.pop()
            yield entry

    def _put(self, cursor: Cursor) -> None:
        entry = cursor.next()
        if entry is not None:
            heapq.heappush(self._fronts, (entry, cursor))


def _merged(fronts: Sequence[tuple[Entry, Cursor]]) -> Iterator[Entry]:
    """Return the entries of some runs, in order. Their cursors do not move."""
    return heapq.merge(*(chain((entry,), iter(cursor.copy().next, None)) for entry, cursor in fronts))
