"""Compares the pages of a spill file with their checksums before LMDB follows an offset in them.

LMDB trusts its file: a flipped bit in a page makes it return another cell or none, or read outside of its map, which
ends the process. So the checksum of each page is kept in memory (`page_sums`). From time to time all pages are to be
checked again (`SpillFile`), and each is compared before it is used the next time. Meanwhile a checked page costs
nothing.

The pages that a call of LMDB will use are found by its keys (`page_trees`). The pages of the main tree and of the tree
of free pages are few. They are compared together before a transaction.

Large values are not in these pages. They have a checksum of their own, and LMDB's header of their run is compared with
what the leaf says of it before the run is freed.

Invariant: `unchecked` has the groups in whose tree there may be a page that is not checked.

Memory: about 20 bytes for each page.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from millpond.state.spillable import lmdb_pages
from millpond.state.spillable.lmdb_pages import HEADER_BYTES, NO_PAGE, LeafCell, Tree
from millpond.state.spillable.page_sums import PageSums, checksum_of, damaged
from millpond.state.spillable.page_trees import EMPTY, PageTree

LARGE_BYTES = 1_024
"""Values of this length and more have a checksum of their own. LMDB puts no shorter one into overflow pages."""

_SEAL_BYTES = 8

_ALSO = 8
"""Pages of a group that a read checks besides, if its own were checked before: so every group is checked at last."""

_CHEAPER = 2
"""Pages that are checked in order in the time that it takes to find one by its key and check it."""

_META_PAGES = (0, 1)


def sealed(value: bytes) -> bytes:
    """Return a large value with its checksum."""
    return value + checksum_of(value).to_bytes(_SEAL_BYTES, "little")


def opened(stored: bytes, folder: Path) -> bytes:
    """Return a large value without its checksum.

    Raises:
        CorruptionError: the value is not what was written.
    """
    value = stored[:-_SEAL_BYTES]
    if checksum_of(value) != int.from_bytes(stored[-_SEAL_BYTES:], "little"):
        raise damaged(folder, "a value is not as it was written")
    return value


class PageSeals:
    """The checksums of one file, which only this process writes. Called under the lock of the file.

    Calls whose names begin with `before` raise a CorruptionError if a page is not as it was written, and an
    UnavailableError if the disk failed.

    Args:
        file: its descriptor.
        page_bytes: the size of its pages.
        folder: its folder, for error messages.
    """

    def __init__(self, file: int, page_bytes: int, folder: Path) -> None:
        self.trees: dict[Any, PageTree] = {}
        self.unchecked: dict[Any, PageTree] = {}
        """The groups with pages to check, by the handle of their database. The others need no call before reads."""
        self._sums = PageSums(file, page_bytes, folder)
        # The first page of each run of pages that every transaction reads: their number, and their checksum.
        self._common: dict[int, tuple[int, int]] = {}
        self._common_checked = True
        self._main = EMPTY
        self._take_common()

    def add(self, database: Any, name: bytes) -> None:
        """Add a key group, whose database was just created."""
        self.trees[database] = PageTree(self._sums, len(self.trees) + 1, name)
        self._take_common()

    def before_transaction(self) -> None:
        """Check the pages that every transaction reads."""
        if not self._common_checked:
            for page, (pages, checksum) in self._common.items():
                if checksum_of(self._sums.read(page, pages)) != checksum:
                    raise self._sums.altered(page)
            self._common_checked = True

    def before_get(self, database: Any, at: bytes) -> None:
        """Check the pages that a read of one cell uses."""
        tree = self.unchecked[database]
        leaf = tree.leaf(at)
        if leaf is None or not self._sums.check(leaf):
            self._check_some(database, tree)

    def before_scan(self, database: Any, first: bytes, prefix: bytes, most: int) -> None:
        """Check the pages that a scan uses.

        It reads `most` cells at most, begins at the key `first` or the one after it, and ends at the first key after
        `first` that does not begin with `prefix`.
        """
        tree = self.unchecked[database]
        found_unchecked = False
        # A leaf has a cell at least. The cells may begin on the second page.
        for key, leaf in islice(tree.leaves(first), most + 2):
            found_unchecked |= self._sums.check(leaf)
            if key > first and not key.startswith(prefix):
                break
        if not found_unchecked:
            self._check_some(database, tree)

    def before_write(self, database: Any, kept: Iterable[bytes], gone: Collection[bytes], count: int) -> None:
        """Check the pages that a write uses: `count` puts under the keys `kept`, and deletions of `gone`.

        Deleting cells may merge any pages.
        """
        tree = self.trees[database]
        overflows = tree.record.overflow_pages > 0
        if overflows:
            kept = list(kept)
        if database in self.unchecked:
            if gone or len(tree.remaining()) < _CHEAPER * count:
                self._check_all(database, tree)
            else:
                for at in kept:
                    leaf = tree.leaf(at)
                    if leaf is not None:
                        self._sums.check(leaf)
        if overflows:
            self._check_runs(tree, sorted([*kept, *gone]))

    def before_drop(self, database: Any) -> None:
        """Check the pages that emptying a group uses."""
        tree = self.trees[database]
        if tree.record.overflow_pages:
            self._check_all(database, tree)
            for _, leaf in tree.leaves():
                for cell in lmdb_pages.cells_in_runs(self._sums.compared(leaf)):
                    self._check_run(cell)
        elif database in self.unchecked:
            for page in tree.inner_pages():
                self._sums.check(page)

    def committed(self, database: Any) -> None:
        """Take the checksums of the pages that a transaction wrote in a group."""
        self._take_common()
        tree = self.trees[database]
        tree.changed(self._record_of(tree.name))

    def check_again(self) -> None:
        """Have every page checked again before it is used."""
        self._common_checked = False
        self._sums.check_again()
        for database, tree in self.trees.items():
            tree.check_again()
            self.unchecked[database] = tree

    def _take_common(self) -> None:
        """Take the checksums of meta pages, main tree and tree of free pages."""
        self._common_checked = True
        meta = [self._sums.read(page) for page in _META_PAGES]
        self._common = {page: (1, checksum_of(data)) for page, data in zip(_META_PAGES, meta, strict=True)}
        free, self._main = lmdb_pages.trees(meta)
        self._take_tree(self._main, lambda _leaf: None)
        self._take_tree(free, self._take_runs)

    def _take_tree(self, record: Tree, take_leaf: Callable[[bytes], None]) -> None:
        level = [record.root] if record.height else []
        for height in range(record.height, 0, -1):
            below: list[int] = []
            for page in level:
                data = self._sums.read(page)
                self._common[page] = (1, checksum_of(data))
                if height > 1:
                    below += lmdb_pages.children(data).tolist()
                else:
                    take_leaf(data)
            level = below

    def _take_runs(self, leaf: bytes) -> None:
        for cell in lmdb_pages.cells_in_runs(leaf):
            pages = lmdb_pages.run_pages(cell.value_bytes, self._sums.page_bytes)
            self._common[cell.run] = (pages, checksum_of(self._sums.read(cell.run, pages)))

    def _record_of(self, name: bytes) -> Tree:
        """Return the record of a named database; that of an empty tree if the main tree does not have it."""
        page = self._main.root
        if page == NO_PAGE:
            return EMPTY
        for _ in range(self._main.height - 1):
            data = self._sums.read(page)
            page = lmdb_pages.children(data).item(bisect_right(lmdb_pages.first_keys(data), name) - 1)
        cell = lmdb_pages.cell_of(self._sums.read(page), name)
        return EMPTY if cell is None else lmdb_pages.tree_of(cell.value)

    def _check_some(self, database: Any, tree: PageTree) -> None:
        tree.check_some(_ALSO)
        if not len(tree.remaining()):
            del self.unchecked[database]

    def _check_all(self, database: Any, tree: PageTree) -> None:
        if database in self.unchecked:
            tree.check_some(len(tree.remaining()))
            del self.unchecked[database]

    def _check_runs(self, tree: PageTree, places: Sequence[bytes]) -> None:
        """Check the headers of the runs of these cells, which are in order and are replaced or deleted."""
        read, data = None, b""
        for at in places:
            leaf = tree.leaf(at)
            if leaf is not None and leaf != read:
                read, data = leaf, self._sums.compared(leaf)
            cell = lmdb_pages.cell_of(data, at)
            if cell is not None and cell.run:
                self._check_run(cell)

    def _check_run(self, cell: LeafCell) -> None:
        pages = lmdb_pages.run_pages(cell.value_bytes, self._sums.page_bytes)
        header = self._sums.read(cell.run)[:HEADER_BYTES]
        if not lmdb_pages.is_run_header(header, cell.run, pages):
            raise self._sums.altered(cell.run)
