"""The tree of one key group in a spill file: its pages after each write, and the page of each key.

Which pages a transaction wrote is read from the file afterwards. LMDB never writes a page that the last tree refers to:
it writes a copy to a free page. So a page that the tree had before is the same, with all below it, and only branches on
the way to new pages are read.

A key is found as LMDB finds it, by the first keys of branches. They are kept for the branches that were searched.

Memory: 8 bytes for each page, and the first keys of branches that were searched.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Any

from millpond.state.spillable import lmdb_pages
from millpond.state.spillable.lmdb_pages import NO_PAGE, Tree
from millpond.state.spillable.page_sums import PageSums

EMPTY = Tree(0, 0, NO_PAGE)


class _Branch:
    """A branch page: the pages that it refers to, and their first keys once it was searched."""

    __slots__ = ("children", "keys")

    def __init__(self, children: Any) -> None:
        self.children = children
        self.keys: list[bytes] | None = None


class PageTree:
    """The branches and leaves of a key group.

    Args:
        number: that of the tree in `PageSums.owner`, from 1.
        name: of its database.
    """

    def __init__(self, sums: PageSums, number: int, name: bytes) -> None:
        self.name = name
        self.record = EMPTY
        self._sums = sums
        self._number = number
        self._branches: dict[int, _Branch] = {}
        self._remaining: list[int] | None = []

    def changed(self, record: Tree) -> None:
        """Take the checksums of the pages that are new in the tree of this record."""
        written, kept = self._taken(record)
        self._give_up(kept)
        owner, number = self._sums.owner, self._number
        for page in chain(kept, written):
            owner[page] = number
        self.record = record

    def check_again(self) -> None:
        """Take no page for checked any more."""
        self._remaining = None

    def remaining(self) -> list[int]:
        """Return the pages that may not be checked, and perhaps some that have left the tree."""
        if self._remaining is None:
            self._remaining = self.pages()
        return self._remaining

    def check_some(self, most: int) -> None:
        """Check some pages that may not be checked."""
        pages, owner = self.remaining(), self._sums.owner
        # Others have left the tree since.
        self._sums.check_all(page for page in pages[-most:] if owner[page] == self._number)
        del pages[-most:]

    def pages(self) -> list[int]:
        """Return all branches and leaves."""
        children = (branch.children.tolist() for branch in self._branches.values())
        return [*_root(self.record), *chain.from_iterable(children)]

    def inner_pages(self) -> list[int]:
        """Return the branches; the leaf of a tree that has only one."""
        return list(self._branches) or _root(self.record)

    def leaf(self, at: bytes) -> int | None:
        """Return the leaf in which LMDB searches a key; None in an empty tree. The branches on the way are checked."""
        page = self.record.root
        if page == NO_PAGE:
            return None
        for _ in range(self.record.height - 1):
            keys, children = self._searched(page)
            page = children.item(bisect_right(keys, at) - 1)
        return page

    def leaves(self, first: bytes = b"") -> Iterator[tuple[bytes, int]]:
        """Yield the leaves from that of the key `first` on, each with a key that none of its own is smaller than."""
        if self.record.height:
            yield from self._leaves_below(self.record.root, self.record.height, b"", first)

    def _leaves_below(self, page: int, height: int, key: bytes, first: bytes) -> Iterator[tuple[bytes, int]]:
        if height == 1:
            yield key, page
            return
        keys, children = self._searched(page)
        for place in range(bisect_right(keys, first) - 1, len(keys)):
            yield from self._leaves_below(children.item(place), height - 1, keys[place] or key, first)

    def _searched(self, page: int) -> tuple[list[bytes], Any]:
        """Return the first keys of a branch's children, and the children. The branch is checked."""
        branch = self._branches[page]
        if branch.keys is None:
            branch.keys = lmdb_pages.first_keys(self._sums.compared(page))
        else:
            self._sums.check(page)
        return branch.keys, branch.children

    def _taken(self, record: Tree) -> tuple[list[int], list[int]]:
        """Take the checksums of new pages. Return them, and the highest of the pages that the tree had before."""
        written: list[int] = []
        kept: list[int] = []
        sums, number = self._sums, self._number
        level = _root(record)
        for height in range(record.height, 0, -1):
            sums.make_room(max(level, default=0))
            owner, new = sums.owner, list[int]()
            for page in level:
                (kept if owner[page] == number else new).append(page)
            written += new
            level = []
            for pages, data in sums.take(new):
                if height > 1:
                    for page, each in zip(pages, data, strict=True):
                        branch = self._branches[page] = _Branch(lmdb_pages.children(each))
                        level += branch.children.tolist()
        return written, kept

    def _give_up(self, kept: list[int]) -> None:
        """Give up the pages of the tree before that are not in the tree now. All below a kept page is kept."""
        owner, number = self._sums.owner, self._number
        for page in kept:
            owner[page] = 0
        level = _root(self.record)
        for height in range(self.record.height, 0, -1):
            level = [page for page in level if owner[page] == number]
            for page in level:
                owner[page] = 0
            if height > 1:
                level = list(chain.from_iterable(self._branches.pop(page).children.tolist() for page in level))


def _root(record: Tree) -> list[int]:
    return [record.root] if record.height else []
