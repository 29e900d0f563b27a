"""The checksums of a spill file's pages, kept in memory, and the pages that were compared with them.

A page is *checked* once it was written or compared with its checksum, until all are to be checked again. Pages
are read with `pread`, which maps nothing and reports errors of the disk.

Invariant: a page has the number of a tree in `owner` exactly if it is a branch or leaf of that tree as it is now. Only
such pages have a checksum here.
"""

import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

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
        self.owner = array("I")
        self._file = file
        self._buffer = memoryview(bytearray(_READ_AT_ONCE * page_bytes))
        self._sums = array("Q")
        self._is_checked = bytearray()

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
        if self._is_checked[page]:
            return False
        self.compared(page)
        return True

    def check_all(self, pages: Iterable[int]) -> None:
        """Check those of these pages that are not checked."""
        for some, data in self._read_all(page for page in pages if not self._is_checked[page]):
            for page, found in zip(some, map(checksum_of, data), strict=True):
                if found != self._sums[page]:
                    raise self.altered(page)
                self._is_checked[page] = True

    def compared(self, page: int) -> bytes:
        """Read and check a page."""
        data = self.read(page)
        if checksum_of(data) != self._sums[page]:
            raise self.altered(page)
        self._is_checked[page] = True
        return data

    def take(self, pages: Iterable[int]) -> Iterator[tuple[list[int], list[memoryview]]]:
        """Take the checksums of pages that were just written. Yield pages with their bytes, until the next are read."""
        sums, is_checked = self._sums, self._is_checked
        for some, data in self._read_all(pages):
            for page, checksum in zip(some, map(checksum_of, data), strict=True):
                sums[page] = checksum
                is_checked[page] = True
            yield some, data

    def make_room(self, page: int) -> None:
        """Make room for what is known of a page."""
        more = page + 1 - len(self.owner)
        if more > 0:
            more = max(more, _ROOM)
            self.owner.frombytes(bytes(more * self.owner.itemsize))
            self._sums.frombytes(bytes(more * self._sums.itemsize))
            self._is_checked.extend(bytes(more))

    def check_again(self) -> None:
        """Take no page for checked any more."""
        self._is_checked = bytearray(len(self._is_checked))

    def altered(self, page: int) -> CorruptionError:
        """Return the error for a page that is not as it was written."""
        return damaged(self.folder, f"page {page} is not as it was written")

    def _unreadable(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"the spill file in {self.folder} could not be read: {error}. See to that disk; the checkpoint has what is "
            "in it."
        )

    def _read_all(self, pages: Iterable[int]) -> Iterator[tuple[list[int], list[memoryview]]]:
        """Yield pages with their bytes, until the next are read. Pages that are close to each other are read together.

        They are read into the same memory each time: new memory would take as long again.
        """
        wanted, size, begin = sorted(pages), self.page_bytes, 0
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
