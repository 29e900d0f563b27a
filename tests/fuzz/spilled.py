"""The decoders of what a heap that spills reads from disk. A cell that they give is the one that was written.

The checksums of pages are in memory, so nothing in a spill file can be made to fit them.
"""

import os
import tempfile
from pathlib import Path

import xxhash

from millpond.state.spillable.spill_file import SpillFile
from millpond.state.spillable.timer_runs import _HEADER, Run, _encode
from tests.fuzz.shelf import SHELF

FOLDER = Path(tempfile.mkdtemp(prefix="millpond-fuzz-", dir=SHELF))
CELLS = {
    **{b"a%04d" % number: b"%d" % number * (number % 30) for number in range(300)},
    b"large": b"l" * 5_000,
    b"larger": b"m" * 9_000,
}
ENTRIES = [(1_000 + number, number, number % 8, b"\x91\xa3ann") for number in range(40)]


def _written() -> SpillFile:
    file = SpillFile(FOLDER, 1 << 20, 2)
    file.write(file.database(0), sorted(CELLS.items()))
    file.write(file.database(1), [(b"other", b"cell")])
    return file


FILE = _written()
DATABASE = FILE.database(0)
FILE_BYTES = os.pread(FILE._pages.fileno(), 1 << 20, 0)
RUN = Run([FOLDER], lambda: iter(ENTRIES))
RUN_BYTES = os.pread(RUN._file, 1 << 20, 0)
FOLDER.rmdir()


def _put(descriptor: int, data: bytes) -> None:
    Path(f"/proc/self/fd/{descriptor}").write_bytes(data)


def _cells(data: bytes) -> object:
    """What is read of a file that was altered while it was not in memory."""
    FILE.forget_pages()
    FILE._seals.check_again()
    _put(FILE._pages.fileno(), data)
    try:
        found = {at: FILE.get(DATABASE, at) for at in CELLS}
        assert found == CELLS, "another cell, or none, where one was written"
        assert dict(FILE.scan(DATABASE, b"")) == CELLS
        assert FILE.get(DATABASE, b"none") is None
        return found
    finally:
        _put(FILE._pages.fileno(), FILE_BYTES)


def _timers(data: bytes) -> object:
    _put(RUN._file, data)
    return RUN.block(0)


def _sealed_block(body: bytes) -> bytes:
    return _HEADER.pack(len(body), xxhash.xxh64_intdigest(body)) + body


assert _sealed_block(_encode(ENTRIES)) == RUN_BYTES

# decoder, right bytes, how a body is sealed, where the body begins
SPILLED = {
    "spill file": (_cells, FILE_BYTES),
    "spilled timers": (_timers, RUN_BYTES, _sealed_block, _HEADER.size),
}
