"""The files of a hop table: each has the hops of one bucket of keys and one span of time, sorted by the key's hash.

Place on the data path: inside the tasks of backfill and upload. A span is a day, a rollup of days (`rollups`), or all
time before the days. Files are read side by side, some keys at a time. Each lot has all hops of its keys, so memory
does not depend on the number of keys in a bucket.

The name of a file ends in the CRC-32 of its bytes, so an altered file is refused. Parquet's own checksums cover only
the data of pages: a page with an altered header may be skipped silently.
"""

import re
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.errors import CorruptionError
from millpond.features.hops import BEFORE_MS

KEY_HASH = "key_hash"
"""The column by which files are sorted: Spark's 64-bit hash of the key. Keys with the same hash lie together,
unsorted.
"""

_NAME = re.compile(r"(hops|block)-([0-9]{8})-([0-9]{5})-(before|-?[0-9]+)-[0-9a-f]{32}\.parquet")
_CHECKSUM_DIGITS = 8
_CHECKED_BYTES = 1 << 20
_ROWS_AT_ONCE = 1 << 15
_LOT_BYTES = 64 << 20
_ROWS_A_GROUP = 50_000


class Span(NamedTuple):
    """The time that a file has the hops of.

    Args:
        start_ms: where it starts; `BEFORE_MS` for all time before the days.
        is_rollup: whether it is a rollup: several days, merged.
    """

    start_ms: int
    is_rollup: bool = False


def file_name(version: int, bucket: int, span: Span, checksum: int = 0) -> str:
    """Return a name that no other attempt of a task writes. The checksum is 0 while the file is unfinished."""
    # The names of rollups in files began with "block" before they were called rollups.
    kind = "block" if span.is_rollup else "hops"
    start = "before" if span.start_ms == BEFORE_MS else span.start_ms
    return f"{kind}-{version:08}-{bucket:05}-{start}-{secrets.token_hex(12)}{checksum:08x}.parquet"


def version_of(name: str) -> int | None:
    """Return the version that a file was written for; None if the name is not of a hop table's file."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[2])


def bucket_of(name: str) -> int:
    """Return the bucket of a file's keys.

    >>> bucket_of(file_name(3, bucket=7, span=Span(BEFORE_MS)))
    7
    """
    return int(_matched(name)[3])


def span_of(name: str) -> Span:
    """Return a file's span.

    >>> span_of(file_name(3, 7, Span(86_400_000, is_rollup=True)))
    Span(start_ms=86400000, is_rollup=True)
    >>> span_of(file_name(3, 7, Span(BEFORE_MS))) == Span(BEFORE_MS)
    True
    """
    match = _matched(name)
    return Span(BEFORE_MS if match[4] == "before" else int(match[4]), match[1] == "block")


def _matched(name: str) -> re.Match[str]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise CorruptionError(f"{name!r} is no file of a hop table; remove the folder, and the next run builds it anew")
    return match


class HopFiles:
    """Writes the hops of one bucket to one file for each span that has hops. Call `close` at the end.

    Attributes:
        names: the names of the files, once they are finished.
    """

    def __init__(self, folder: Path, version: int, bucket: int, schema: pa.Schema) -> None:
        self._folder, self._version, self._bucket, self._schema = folder, version, bucket, schema
        self._writers: dict[Span, pq.ParquetWriter] = {}
        self._unfinished: dict[Span, Path] = {}
        self._waiting: dict[Span, list[pa.Table]] = {}
        self.names: list[str] = []

    def add(self, span: Span, rows: pa.Table) -> None:
        """Write rows of a span. Their hashes come after those of the span's earlier rows."""
        waiting = self._waiting.setdefault(span, [])
        waiting.append(rows)
        if sum(map(len, waiting)) >= _ROWS_A_GROUP:
            self._write(span)

    def close(self) -> None:
        """Finish the files and give them their final names."""
        for span in self._waiting:
            self._write(span)
        for span, writer in self._writers.items():
            writer.close()
            unfinished = self._unfinished[span]
            name = file_name(self._version, self._bucket, span, _checksum(unfinished))
            unfinished.rename(self._folder / name)
            self.names.append(name)

    def _write(self, span: Span) -> None:
        if span not in self._writers:
            path = self._unfinished[span] = self._folder / file_name(self._version, self._bucket, span)
            self._writers[span] = pq.ParquetWriter(path, self._schema, compression="zstd", use_dictionary=False)
        if self._waiting[span]:
            self._writers[span].write_table(pa.concat_tables(self._waiting[span]))
            self._waiting[span] = []


def read_files(folder: Path, names: Sequence[str], columns: Sequence[str]) -> list[Iterator[pa.Table]]:
    """Return an iterator over the rows of each file, in pieces.

    One piece of every file fits into memory at the same time.

    Raises:
        CorruptionError: when rows are read: a file is missing, torn or altered.
    """
    return [_pieces(folder / name, len(names), list(columns)) for name in names]


def _pieces(path: Path, files: int, columns: list[str]) -> Iterator[pa.Table]:
    try:
        _check(path)
        with pq.ParquetFile(path) as file:
            size = sum(file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups))
            row_bytes = max(1, size // max(1, file.metadata.num_rows))
            rows = max(1, min(_ROWS_AT_ONCE, _LOT_BYTES // files // row_bytes))
            for batch in file.iter_batches(rows, columns=columns, use_threads=False):
                yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowInvalid) as cause:
        raise CorruptionError(
            f"{path} of a hop table cannot be read: {cause}; remove the folder, and the next run builds it anew from "
            "the events"
        ) from cause


def _check(path: Path) -> None:
    found = f"{_checksum(path):08x}"
    if found != path.stem[-_CHECKSUM_DIGITS:]:
        raise OSError(f"the CRC-32 of its bytes is {found}, not the one in its name")


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(_CHECKED_BYTES):
            checksum = zlib.crc32(piece, checksum)
    return checksum


class _Source:
    """Rows sorted by the hash of their key, read in pieces.

    ``rows`` has those that were read and not yet taken; None if there are none.
    """

    def __init__(self, pieces: Iterable[pa.Table]) -> None:
        self._pieces = iter(pieces)
        self._following = next(self._pieces, None)
        self.rows: pa.Table | None = None
        self.more()

    @property
    def is_over(self) -> bool:
        """Whether no rows follow those in ``rows``."""
        return self._following is None

    @property
    def last_hash(self) -> int:
        """The hash of the last row in ``rows``."""
        assert self.rows is not None  # noqa: S101 - called only while there are rows
        found: int = self.rows[KEY_HASH][-1].as_py()
        return found

    def more(self) -> None:
        """Append the next piece to ``rows``."""
        if self._following is not None:
            self.rows = self._following if self.rows is None else pa.concat_tables([self.rows, self._following])
            self._following = next(self._pieces, None)

    def take(self, bound: int | None) -> pa.Table | None:
        """Remove and return the rows whose hashes come before a bound; None for the bound means all rows."""
        rows = self.rows
        if rows is None:
            return None
        count = len(rows) if bound is None else int(np.searchsorted(rows[KEY_HASH].to_numpy(), bound))
        self.rows = rows.slice(count) if count < len(rows) else None
        if self.rows is None:
            self.more()
        return rows.slice(0, count) if count else None


def lots_of_keys(sources: Sequence[Iterable[pa.Table]]) -> Iterator[list[tuple[int, pa.Table]]]:
    """Merge sources into lots of keys; hashes ascend from lot to lot.

    Yield for each lot all rows of its keys, as (number of the source, rows).

    Args:
        sources: tables, none of them empty, sorted by the column `KEY_HASH`.

    >>> def hashes(*found): return pa.table({"key_hash": found})
    >>> lots = lots_of_keys([[hashes(1, 2), hashes(2, 4)], [hashes(1, 3)]])
    >>> [[(number, rows["key_hash"].to_pylist()) for number, rows in lot] for lot in lots]
    [[(0, [1]), (1, [1])], [(0, [2, 2, 4]), (1, [3])]]
    """
    made = [_Source(source) for source in sources]
    while any(source.rows is not None for source in made):
        going_on = [source for source in made if not source.is_over]
        bound = min((source.last_hash for source in going_on), default=None)
        taken = [(number, rows) for number, source in enumerate(made) if (rows := source.take(bound)) is not None]
        if taken:
            yield taken
            continue
        for source in going_on:
            if source.last_hash == bound:
                source.more()
