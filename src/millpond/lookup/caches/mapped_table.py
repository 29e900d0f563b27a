"""A full table as one file that any number of processes map: the rows in Arrow, and a hash index after them.

The file is written once, gets its final name when it is complete, and never changes. So readers share its pages
without a lock. The rows are in the order in which the source gave them; only the index is sorted. A reload briefly
needs two files on disk, and one column of the table in memory (`column_file`).

The file::

    columns | offsets | tags | firsts | places | where the columns end | footer

A key's hash has 64 bits. The high bits choose a bucket, and the low 32 bits are the *tag*. `offsets` says where the
entries of each bucket begin in `tags`. Entry e has the rows `places[firsts[e]]` up to, but not including,
`places[firsts[e + 1]]`, all of one key. If every key has one row, `firsts` is empty, and entry e is row `places[e]`.
Numbers have 32 bits, or 64 in a table of 2^32 rows or more. That is 8 to 16 bytes per key.

The footer has the sizes and a checksum of the file (`table_footer`).

The invariant: **no two keys of the table share both bucket and tag**. If two would, the table is hashed again with
the next seed. So an entry is found by comparing numbers, and a single comparison of the key columns shows whether it
has the requested key. All keys of a batch are searched together.

Source: a read-only bucketed hash table in compressed sparse row form, as in static indexes.
"""

import mmap
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import CorruptionError, DataError, UnavailableError
from millpond.lookup.caches.column_file import (
    Columns,
    Scanned,
    aligned,
    columns_of_batches,
    columns_of_table,
    one_chunk,
    pad,
    read_columns,
    write_columns,
)
from millpond.lookup.caches.held_table import exact_times
from millpond.lookup.caches.table_footer import (
    FOOTER_BYTES,
    Footer,
    SummedFile,
    check_sum,
    is_checked,
    not_whole,
    read_footer,
    remember_checked,
    write_footer,
)
from millpond.lookup.column_cache.key_hash import Hashes, equal, hashes, key_array, plain_column
from millpond.lookup.functions.function import Key, Rows
from millpond.lookup.functions.keys import check_key_types

Positions = npt.NDArray[np.int64]

_END = np.dtype("<u8")
_MOST_ROWS_OF_32_BITS = 1 << 32
_MOST_SEEDS = 100
_MOST_BITS = 63
_PIECE = 1 << 16


@dataclass(frozen=True)
class Found:
    """The rows of a batch of keys: key i has the `counts[i]` row numbers of `places` from `starts[i]` on."""

    starts: Positions
    counts: Positions
    places: npt.NDArray[Any]


class MappedTable:
    """A table with its hash index, in a memory-mapped file.

    >>> import tempfile
    >>> gates = pa.table({"code": ["JFK", "EWR", "JFK"], "gate": [1, 2, 3]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = MappedTable.of(gates, ["code"], Path(folder, "gates.table"))
    ...     table.find([("JFK",), ("LHR",)])
    {('JFK',): [('JFK', 1), ('JFK', 3)], ('LHR',): []}
    """

    def __init__(self, path: Path) -> None:
        """Map a file that `of` wrote.

        Raises:
            FileNotFoundError: the file does not exist.
            CorruptionError: the file is incomplete or altered. A process checks each file once, before its first
                answer.
        """
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if found.st_size else None
        mapped = memoryview(b"" if pages is None else pages)
        footer = read_footer(path, mapped)
        if not is_checked(found):
            check_sum(path, mapped, partial(_let_go, pages))
        self.path = path
        self.file_bytes = len(mapped)
        try:
            self._read(mapped, footer)
            if not is_checked(found):
                self._check(partial(_let_go, pages))
        except (pa.ArrowException, OSError, struct.error, ValueError, LookupError, TypeError, OverflowError) as error:
            raise CorruptionError(not_whole(path, str(error))) from error
        remember_checked(found)

    def _read(self, mapped: memoryview, footer: Footer) -> None:
        ends_at = len(mapped) - FOOTER_BYTES - footer.columns * _END.itemsize
        if ends_at < 0 or not footer.columns or footer.width not in (4, 8) or footer.bits > _MOST_BITS:
            raise ValueError(f"its footer is {footer}")
        ends = np.frombuffer(mapped, _END, footer.columns, ends_at).tolist()
        number = np.dtype(f"<u{footer.width}")
        lengths = [((1 << footer.bits) + 1, number), (footer.keys, np.dtype("<u4"))]
        lengths += [(0 if footer.unique else footer.keys + 1, number), (footer.places, number)]
        starts = [aligned(ends[-1])]
        for length, kind in lengths:
            starts.append(aligned(starts[-1] + length * kind.itemsize))
        if starts[-1] != ends_at:
            raise ValueError(f"its parts have {starts[-1]} bytes instead of {ends_at}")
        self._offsets, self._tags, self._firsts, self._places = (
            np.frombuffer(mapped, kind, length, start)
            for (length, kind), start in zip(lengths, starts[:-1], strict=True)
        )
        self._unique, self._seed, self._bits = footer.unique, footer.seed, footer.bits
        self.key_count = footer.keys
        self.table = read_columns(pa.py_buffer(mapped), ends)
        self.keys = tuple(self.table.schema.metadata[b"millpond.keys"].decode().split("\n"))
        self._key_types = [self.table.schema.field(name).type for name in self.keys]

    def _check(self, let_go: Callable[[], None]) -> None:
        """Check every value, and that no number of the index points outside its part.

        The pages of each checked part are released, because during a reload the previous table is in memory too.
        """
        self.table.validate()
        for column in self.table.columns:
            column.validate(full=True)
            let_go()
        counted = [(self._offsets, self.key_count, True), (self._places, self.table.num_rows - 1, False)]
        if not self._unique:
            counted.append((self._firsts, len(self._places), True))
        elif len(self._places) != self.key_count:
            raise ValueError(f"it has {self.key_count} keys of one row, and {len(self._places)} rows")
        for numbers, most, ascending in counted:
            _check_numbers(numbers, max(most, 0), ascending=ascending)
            let_go()

    @classmethod
    def of(cls, scanned: Scanned, keys: Sequence[str], path: Path) -> Self:
        """Write a table with its index to the file `path`, and map it.

        Batches need the least memory. A table in memory is released column by column as it is written, if the caller
        keeps no reference to it.

        Raises:
            DataError: a key column is not in the table.
            OptionError: a key column has a type without exact equality.
            UnavailableError: the file cannot be written.
        """
        unfinished = path.with_name(f"{path.name}.unfinished")
        try:
            with unfinished.open("wb") as opened:
                file = SummedFile(opened)
                with closing(_columns(scanned, keys, path)) as columns:
                    del scanned
                    ends = write_columns(columns, {"millpond.keys": "\n".join(keys)}, file)
                _write_index(unfinished, keys, ends, file)
            unfinished.rename(path)
        except (ConnectionError, TimeoutError):
            # From the source, whose batches are read during the write; not from the disk.
            raise
        except OSError as error:
            raise UnavailableError(
                f"a lookup table could not be written to {path}: {error}; make room there, or point TMPDIR elsewhere"
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)
        return cls(path)

    @property
    def held_bytes(self) -> int:
        """The bytes of the file, including the index."""
        return self.file_bytes

    def column(self, name: str) -> pa.Array:
        """Return a column without a copy."""
        return one_chunk(self.table.column(name))

    def search(self, columns: Sequence[pa.Array]) -> Found:
        """Find the row numbers of every key, given as one array for each key column."""
        plain = [plain_column(column, key_type) for column, key_type in zip(columns, self._key_types, strict=True)]
        entries = self._entries(hashes(plain, self._seed))
        candidates = np.flatnonzero(entries >= 0)
        if plain[0].null_count or len(plain) > 1 or len(candidates):
            rows = pa.array(self._places[self._first(entries[candidates])])
            same = np.ones(len(candidates), np.bool_)
            for asked, name, key_type in zip(plain, self.keys, self._key_types, strict=True):
                there = plain_column(pc.take(self.column(name), rows), key_type)
                same &= equal(pc.take(asked, pa.array(candidates)), there)
            candidates = candidates[same]
        starts, counts = np.zeros(len(entries), np.int64), np.zeros(len(entries), np.int64)
        found = entries[candidates]
        starts[candidates] = self._first(found)
        counts[candidates] = self._first(found + 1) - starts[candidates]
        return Found(starts, counts, self._places)

    def find(self, keys: Sequence[Key], columns: Sequence[str] | None = None) -> dict[Key, Rows]:
        """Return the rows of every key, with the given columns or with all columns of the table."""
        if not keys:
            return {}
        columns_of_keys = zip(zip(*keys, strict=True), self._key_types, strict=True)
        found = self.search([key_array(values, key_type) for values, key_type in columns_of_keys])
        spans = zip(found.starts.tolist(), (found.starts + found.counts).tolist(), strict=True)
        spans_of = [self._places[start:end].tolist() for start, end in spans]
        taken = self.table if columns is None else self.table.select(columns)
        taken = taken.take(pa.array([place for places in spans_of for place in places], pa.int64()))
        try:
            rows = iter(list(zip(*(column.to_pylist() for column in taken.columns), strict=True)))
        # A time zone that Python does not know is a KeyError.
        except (ValueError, ArithmeticError, LookupError) as error:
            raise DataError(f"lookup table file {self.path}: Python cannot represent a value: {error!r}") from error
        return {key: [next(rows) for _ in places] for key, places in zip(keys, spans_of, strict=True)}

    def _first(self, entries: Positions) -> Positions:
        return entries if self._unique else self._firsts[entries].astype(np.int64)

    def _entries(self, mixed: Hashes) -> Positions:
        """Return for every hash the entry with its bucket and tag, or -1."""
        buckets = _buckets(mixed, self._bits)
        entries = self._offsets[buckets].astype(np.int64)
        ends = self._offsets[buckets + 1].astype(np.int64)
        tags = mixed.astype(np.uint32)
        searching = np.flatnonzero(entries < ends)
        result = np.full(len(mixed), -1, np.int64)
        while len(searching):
            at = entries[searching]
            hit = self._tags[at] == tags[searching]
            result[searching[hit]] = at[hit]
            entries[searching] += 1
            searching = searching[~hit & (at + 1 < ends[searching])]
        return result


def _columns(scanned: Scanned, keys: Sequence[str], path: Path) -> Columns:
    """Yield the columns of the table, without the rows whose keys have a null."""
    names, schema = scanned.schema.names, scanned.schema
    for name in keys:
        if name not in names:
            raise DataError(
                f"key column {name!r} is not in the scanned table; it has {', '.join(names)}; "
                "name one of these as the key, or add the column to the scan"
            )
    check_key_types("the scanned table", pa.schema([schema.field(name) for name in keys]))
    schema = exact_times(schema, keys)

    def with_keys(table: pa.Table) -> pa.Table:
        table = table.cast(schema)
        for name in keys:
            if table.column(name).null_count:
                table = table.filter(pc.is_valid(table.column(name)))
        return table

    if isinstance(scanned, pa.Table):
        return columns_of_table(with_keys(scanned))
    return columns_of_batches(scanned, with_keys, schema, path)


def _write_index(unfinished: Path, keys: Sequence[str], ends: Sequence[int], file: SummedFile) -> None:
    file.flush()
    with pa.memory_map(str(unfinished)) as source:
        table = read_columns(source.read_buffer(), ends)
        columns = [one_chunk(table.column(name)) for name in keys]
        plain = [plain_column(column, column.type) for column in columns]
        width = 4 if table.num_rows < _MOST_ROWS_OF_32_BITS else 8
        number = np.dtype(f"<u{width}")
        bits = max(1, (max(table.num_rows, 1) - 1).bit_length())
        for seed in range(_MOST_SEEDS):
            mixed = hashes(plain, seed)
            # Keep only the bits of bucket and tag, so that entries that share both are sorted together.
            mixed &= ~np.uint64(0) << np.uint64(64 - bits) | np.uint64(0xFFFFFFFF)
            order = np.argsort(mixed, kind="stable").astype(number)
            mixed = _in_order(mixed, order)
            repeats = np.flatnonzero(mixed[1:] == mixed[:-1]) + 1
            if _same(plain, order, repeats):
                break
        else:
            raise DataError(f"no hash of {_MOST_SEEDS} tells the keys of a lookup table apart; {table.num_rows} rows")
        unique = not len(repeats)
        firsts = np.zeros(0, number)
        if not unique:
            begins = np.ones(len(mixed), np.bool_)
            begins[repeats] = False
            firsts = np.flatnonzero(begins)
            mixed = mixed[firsts]
            firsts = np.append(firsts, len(order)).astype(number)
        entries = len(mixed)
        # Written one by one, so that no two arrays are in memory together.
        _write_array(_offsets(mixed, bits, number), file)
        _write_array(mixed.astype("<u4"), file)
        del mixed
        _write_array(firsts, file)
        _write_array(order, file)
        file.write(np.array(ends, _END))
        write_footer(file, Footer(len(ends), entries, len(order), seed, bits, unique, width))


def _let_go(pages: mmap.mmap | None) -> None:
    """Release a map's pages from this process until it reads them again. The system may keep them cached."""
    if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _check_numbers(numbers: npt.NDArray[Any], most: int, *, ascending: bool) -> None:
    for first in range(0, len(numbers), _PIECE):
        # Includes the number before the piece, to check the order across pieces.
        piece = numbers[max(first - 1, 0) : first + _PIECE]
        if piece.max() > most:
            raise ValueError(f"its index counts to {piece.max()}, and there are {most}")
        if ascending and (piece[1:] < piece[:-1]).any():
            raise ValueError("its index is out of order")


def _write_array(array: npt.NDArray[Any], file: SummedFile) -> None:
    file.write(np.ascontiguousarray(array).view(np.uint8))
    pad(file)


def _in_order(mixed: Hashes, order: npt.NDArray[Any]) -> Hashes:
    """Reorder the hashes piece by piece, which saves memory: numpy converts an index array to 64 bits."""
    ordered = np.empty_like(mixed)
    for first in range(0, len(order), _PIECE):
        ordered[first : first + _PIECE] = mixed[order[first : first + _PIECE]]
    return ordered


def _offsets(mixed: Hashes, bits: int, number: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return where every bucket begins among the sorted hashes, and where the last one ends."""
    offsets = np.empty((1 << bits) + 1, number)
    for first in range(0, 1 << bits, _PIECE):
        buckets = np.arange(first, min(first + _PIECE, 1 << bits), dtype=np.uint64)
        offsets[first : first + len(buckets)] = np.searchsorted(mixed, buckets << np.uint64(64 - bits))
    offsets[-1] = len(mixed)
    return offsets


def _same(plain: Sequence[pa.Array], order: npt.NDArray[Any], repeats: Positions) -> bool:
    """Return whether every row at `repeats` has the same key as the row before it."""
    if not len(repeats):
        return True
    rows, before = pa.array(order[repeats]), pa.array(order[repeats - 1])
    return all(bool(equal(pc.take(column, rows), pc.take(column, before)).all()) for column in plain)


def _buckets(mixed: Hashes, bits: int) -> Positions:
    return (mixed >> np.uint64(64 - bits)).astype(np.int64)
