"""The checksums of a spill file's pages, kept in memory, and the pages that were compared with them.

A page is *checked* once it was written or compared with its checksum, until all are to be checked again. Pages
are read with `pread`, which maps nothing and reports errors of the disk.

Invariant: a page has the number of a tree in `owner` exactly if it is a branch or leaf of that tree as it is now. Only
such pages have a checksum here.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from millpond.errors import CorruptionError, UnavailableError

_READ_AT_ONCE = 64
"""The most pages that one call reads."""

_NEAR = 4
"""Pages that lie no further apart are read by one call, with those between them."""

_ROOM = 1_024
"""The fewest pages by which the arrays grow."""

checksum_of = xxhash.xxh3_64_intdigest


def damaged(folder: Path, what: object) -> CorruptionError:
    """Return the error for a file that is not as it was written."""
    return CorruptionError(
        f"the spill file in {folder} is damaged: {what}. It is only a cache of the checkpoint: restore."
    )


class PageSums:
    """The checksums of one file.

    Args:
        file: its descriptor.
        page_bytes: the size of its pages.
        folder: its folder, for error messages.
    """

    def __init__(self, file: int, page_bytes: int, folder: Path) -> None:
        self.page_bytes = page_bytes
        self.folder = folder
        self.owner = np.zeros(0, np.uint32)
        self._file = file
        self._buffer = memoryview(bytearray(_READ_AT_ONCE * page_bytes))
        self._sums = np.zeros(0, np.uint64)
        self._checked = np.zeros(0, np.bool_)
        # Indexing an array takes three times as long.
        self.is_checked: Any = memoryview(self._checked)  # type: ignore[arg-type]

    def read(self, page: int, pages: int = 1) -> bytes:
        """Read adjacent pages, without checking them.

        Raises:
            UnavailableError: the disk failed.
        """
        try:
            return os.pread(self._file, pages * self.page_bytes, page * self.page_bytes)
        except OSError as error:
            raise self._unreadable(error) from error

    def check(self, page: int) -> bool:
        """Check a page, unless it is checked. Return whether it was not.

        Raises:
            CorruptionError: it is not as it was written.
        """
        if self.is_checked[page]:
            return False
        self.compared(page)
        return True

    def check_all(self, pages: Any) -> None:
        """Check those of these pages that are not checked."""
        for some, data in self._read_all(pages[~self._checked[pages]]):
            for page, found, expected in zip(some, map(checksum_of, data), self._sums[some].tolist(), strict=True):
                if found != expected:
                    raise self.altered(page)
            self._checked[some] = True

    def compared(self, page: int) -> bytes:
        """Read and check a page."""
        data = self.read(page)
        if checksum_of(data) != self._sums.item(page):
            raise self.altered(page)
        self.is_checked[page] = True
        return data

    def take(self, pages: Any) -> Iterator[tuple[int, memoryview]]:
        """Take the checksums of pages that were just written. Yield each page with its bytes."""
        for some, data in self._read_all(pages):
            self._sums[some] = list(map(checksum_of, data))
            self._checked[some] = True
            yield from zip(some, data, strict=True)

    def owned(self, pages: Any, tree: int) -> Any:
        """Return for each page whether a tree has it. Makes room for all of them."""
        most = int(pages.max(initial=0))
        if most >= len(self.owner):
            more = max(_ROOM, most + 1 - len(self.owner), len(self.owner) // 2)
            self.owner, self._sums, self._checked = (
                np.concatenate([old, np.zeros(more, old.dtype)]) for old in (self.owner, self._sums, self._checked)
            )
            self.is_checked = memoryview(self._checked)  # type: ignore[arg-type]
        return self.owner[pages] == tree

    def check_again(self) -> None:
        """Take no page for checked any more."""
        self._checked[:] = False

    def altered(self, page: int) -> CorruptionError:
        """Return the error for a page that is not as it was written."""
        return damaged(self.folder, f"page {page} is not as it was written")

    def _unreadable(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"the spill file in {self.folder} could not be read: {error}. See to that disk; the checkpoint has what is "
            "in it."
        )

    def _read_all(self, pages: Any) -> Iterator[tuple[list[int], list[memoryview]]]:
        """Yield pages with their bytes, until the next are read. Pages that are close to each other are read together.

        They are read into the same memory each time: new memory would take as long again.
        """
        wanted, size, begin = np.sort(pages).tolist(), self.page_bytes, 0
        while begin < len(wanted):
            first = last = wanted[begin]
            end = begin + 1
            while end < len(wanted) and wanted[end] - last <= _NEAR and wanted[end] - first < _READ_AT_ONCE:
                last = wanted[end]
                end += 1
            some, begin = wanted[begin:end], end
            try:
                there = os.preadv(self._file, [self._buffer[: (last - first + 1) * size]], first * size)
            except OSError as error:
                raise self._unreadable(error) from error
            data = self._buffer[:there]
            yield some, [data[(page - first) * size : (page - first + 1) * size] for page in some]
