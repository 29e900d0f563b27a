"""The pages of an LMDB file, as far as their seals need them: which page refers to which, and by which keys.

A file is a sequence of pages. The first two are *meta pages*, of which the one with the later transaction counts. It
names the roots of two trees: that of the free pages, and the *main* tree, whose values are the records of the named
databases. Each record names the root of another tree. Branch pages refer to pages, leaves hold cells, and a value that
is too large for a leaf is in a run of overflow pages.

All numbers are in the byte order of the machine. Only version 1 of the format is read, with page numbers of 64 bits.

Invariant: what is passed in here was compared with its checksum, or has just been written by this process.

Source: LMDB 0.9, `mdb.c`: MDB_page, MDB_node, MDB_meta, MDB_db.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from millpond.errors import UnavailableError

NO_PAGE = (1 << 64) - 1
"""The root of an empty tree."""

HEADER_BYTES = 16

_RUN_HEADER = struct.Struct("=QHHI")
"""Of a run of overflow pages: its first page, nothing, flags, number of pages."""

_OVERFLOW = 0x04
_LOWER_AT = 12
_NODE = struct.Struct("=IHH")
"""Of a cell of a leaf: length of the value, flags, length of the key."""

_IN_RUN = 0x01
_META = struct.Struct("=II")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_TREE = struct.Struct("=IHHQQQQQ")
_FREE_AT = HEADER_BYTES + 24
_MAIN_AT = _FREE_AT + _TREE.size
_TRANSACTION_AT = _MAIN_AT + _TREE.size + 8
_PAGE_NUMBER = struct.Struct("=Q")
_FLAGS_AT, _KEY_LENGTH_AT = 4, 6
_SHORT = struct.Struct("=H")


class Tree(NamedTuple):
    """What a record says about a tree. The height of a tree of one leaf is 1, and that of an empty tree 0."""

    height: int
    overflow_pages: int
    root: int


class LeafCell(NamedTuple):
    """A cell of a leaf. `run` is the first of its overflow pages, or 0 if the value is in the leaf."""

    key: bytes
    value: bytes
    value_bytes: int
    run: int


def trees(meta_pages: Sequence[bytes]) -> tuple[Tree, Tree]:
    """Return the tree of free pages and the main tree.

    Raises:
        UnavailableError: the file has another format.
    """
    page = max(meta_pages, key=_transaction)
    if _META.unpack_from(page, HEADER_BYTES) != (_MAGIC, _VERSION):
        raise UnavailableError(
            "the installed lmdb does not write version 1 of LMDB's format, which is the one that spill files need: "
            "install a release with LMDB 0.9."
        )
    return _tree(page, _FREE_AT), _tree(page, _MAIN_AT)


def tree_of(record: bytes) -> Tree:
    """Return what the record of a named database says."""
    return _tree(record, 0)


def children(page: bytes | memoryview) -> Any:
    """Return the pages that a branch page refers to, in the order of keys."""
    shorts = np.frombuffer(page, np.uint16)
    nodes = _positions(page) // 2
    low, middle, high = (shorts[nodes + place].astype(np.int64) for place in range(3))
    return low | middle << 16 | high << 32


def first_keys(page: bytes) -> list[bytes]:
    """Return the key from which on each page that a branch page refers to is searched."""
    keys = [_key(page, node) for node in _positions(page).tolist()]
    # LMDB does not look at the first key: that page is searched for every smaller key too.
    keys[0] = b""
    return keys


def cells_in_runs(page: bytes) -> list[LeafCell]:
    """Return the cells of a leaf whose values are in overflow pages."""
    nodes = _positions(page)
    flags = np.frombuffer(page, np.uint16)[nodes // 2 + _FLAGS_AT // 2]
    return [_cell(page, node) for node in nodes[flags & _IN_RUN != 0].tolist()]


def cell_of(page: bytes, key: bytes) -> LeafCell | None:
    """Return the cell of a key in a leaf, or None."""
    nodes = _positions(page).tolist()
    place = bisect_left(nodes, key, key=lambda node: _key(page, node))
    found = _cell(page, nodes[place]) if place < len(nodes) else None
    return found if found is not None and found.key == key else None


def run_pages(value_bytes: int, page_bytes: int) -> int:
    """Return how many overflow pages a value takes."""
    return (HEADER_BYTES - 1 + value_bytes) // page_bytes + 1


def is_run_header(header: bytes, run: int, pages: int) -> bool:
    """Return whether these bytes are the header of a run. LMDB reads it when it frees the run."""
    if len(header) != _RUN_HEADER.size:
        return False
    page, _, flags, found = _RUN_HEADER.unpack(header)
    return (page, flags, found) == (run, _OVERFLOW, pages)


def _key(page: bytes, node: int) -> bytes:
    start = node + _NODE.size
    return page[start : start + _SHORT.unpack_from(page, node + _KEY_LENGTH_AT)[0]]


def _cell(page: bytes, node: int) -> LeafCell:
    value_bytes, flags, key_bytes = _NODE.unpack_from(page, node)
    start = node + _NODE.size
    at = start + key_bytes
    if flags & _IN_RUN:
        return LeafCell(page[start:at], b"", value_bytes, _PAGE_NUMBER.unpack_from(page, at)[0])
    return LeafCell(page[start:at], page[at : at + value_bytes], value_bytes, 0)


def _transaction(meta_page: bytes) -> int:
    number: int = _PAGE_NUMBER.unpack_from(meta_page, _TRANSACTION_AT)[0]
    return number


def _tree(data: bytes, at: int) -> Tree:
    _, _, height, _, _, overflow_pages, _, root = _TREE.unpack_from(data, at)
    return Tree(height, overflow_pages, root)


def _positions(page: bytes | memoryview) -> Any:
    """Return where in a page its nodes begin."""
    lower = _SHORT.unpack_from(page, _LOWER_AT)[0]
    return np.frombuffer(page, np.uint16, (lower - HEADER_BYTES) // 2, HEADER_BYTES).astype(np.int64)
