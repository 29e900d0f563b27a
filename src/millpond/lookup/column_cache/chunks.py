"""The entries of a column cache: keys and rows in Arrow, in chunks that are merged.

Entries that were loaded together share a chunk. A chunk has the rows of its entries one after the other, and where
the rows of each entry begin. Two arrays indexed by slot tell each entry's chunk and its number there. The
invariants: the arrays of a chunk never change; an entry of a chunk is *live* while the two arrays point at it.

Merging keeps the number of chunks small. A new chunk is merged with the one before while that is less than twice as
heavy, and the two have at most a gibibyte. So the number of chunks is at most logarithmic in the number of entries,
apart from one for each gibibyte, and so is the number of times that an entry is copied. A chunk whose dead entries
exceed a quarter of its weight is rewritten without them. So the chunks weigh at most a third more than the live
entries.

Source: the logarithmic method of Bentley and Saxe, "Decomposable searching problems" (1980).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.lookup.column_cache.hash_index import Slots, grown
from millpond.lookup.column_cache.hashed_keys import HashedKeys

Positions = npt.NDArray[np.int64]

_MOST_DEAD = 0.25
_MOST_BYTES = 1 << 30
"""The most bytes of merged chunks. A column of text has at most twice as many, because Arrow counts them in 32 bits."""

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of some keys. Key i has the `counts[i]` rows of `rows` from `starts[i]` on.

    >>> rows = Rows(np.array([0, 1]), np.array([1, 2]), pa.record_batch({"gate": [7, 8, 9]}))
    >>> [each.to_pylist() for each in rows.taken(np.array([1])).rows.columns]
    [[8, 9]]
    """

    starts: Positions
    counts: Positions
    rows: pa.RecordBatch

    def taken(self, keys: Positions) -> "Rows":
        """Return the rows of some of the keys, given by position."""
        starts, counts = self.starts[keys], self.counts[keys]
        ends = np.cumsum(counts)
        places = starts
        if int(counts.max(initial=0)) > 1 or int(counts.min(initial=1)) < 1:
            places = np.repeat(starts - (ends - counts), counts) + np.arange(int(ends[-1]) if len(ends) else 0)
        return Rows(ends - counts, counts, taken_rows(self.rows, places))


def taken_rows(rows: pa.RecordBatch, places: Positions) -> pa.RecordBatch:
    """Copy the rows at these positions. A batch without columns is returned as it is."""
    if not rows.num_columns:
        return rows
    taken = pa.array(places)
    return pa.RecordBatch.from_arrays([pc.take(column, taken) for column in rows.columns], schema=rows.schema)


def joined_rows(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate parts, of which there must be at least one."""
    if len(parts) == 1:
        return parts[0]
    columns = [pa.concat_arrays(columns) for columns in zip(*(part.columns for part in parts), strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=parts[0].schema) if columns else parts[0]


class _Chunk:
    """Entries that are stored together. Those that their slot does not point at are dead."""

    __slots__ = ("columns", "counts", "dead", "live", "nbytes", "rows", "slots", "starts", "weights")

    def __init__(self, slots: Slots, columns: tuple[pa.Array, ...], rows: Rows, weights: Positions) -> None:
        self.slots, self.columns, self.weights = slots, columns, weights
        self.starts, self.counts, self.rows = rows.starts, rows.counts, rows.rows
        self.live, self.dead = int(weights.sum()), 0
        arrays = (self.slots, self.weights, self.starts, self.counts, self.rows, *columns)
        self.nbytes = sum(array.nbytes for array in arrays)

    def taken(self, entries: Positions) -> Rows:
        return Rows(self.starts, self.counts, self.rows).taken(entries)


class Chunks:
    """The keys and rows of all entries, by slot."""

    def __init__(self) -> None:
        self._chunks: dict[int, _Chunk] = {}
        self._next = 0
        self._chunk_of = np.full(0, _NOWHERE, np.int64)
        self._entry_of = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """The bytes of all chunks, including dead entries."""
        return sum(chunk.nbytes for chunk in self._chunks.values())

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self._chunks)

    def add(self, slots: Slots, keys: HashedKeys, rows: Rows, weights: Positions) -> None:
        """Store the rows of keys in empty slots. The rows must be in the order of the keys."""
        if not len(slots):
            return
        self._append(slots, keys.columns, rows, weights)
        while len(self._chunks) > 1:
            before, last = list(self._chunks)[-2:]
            if self._chunks[before].live >= 2 * self._chunks[last].live:
                return
            if self._chunks[before].nbytes + self._chunks[last].nbytes > _MOST_BYTES:
                return
            self._merge(before, last)

    def remove(self, slots: Slots) -> None:
        """Remove the entries of distinct slots."""
        chunk_of = self._chunk_of[slots]
        self._chunk_of[slots] = _NOWHERE
        for number, chunk in list(self._chunks.items()):
            entries = self._entry_of[slots[chunk_of == number]]
            if len(entries):
                died = int(chunk.weights[entries].sum())
                chunk.dead += died
                chunk.live -= died
                if chunk.dead > _MOST_DEAD * (chunk.live + chunk.dead):
                    self._merge(number)

    def rows(self, slots: Slots) -> Rows | None:
        """Return the rows of slots, all of which must have an entry; None if there are no slots."""
        starts, counts = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
        parts: list[pa.RecordBatch] = []
        first = 0
        for chunk, asked in self._parts(slots):
            found = chunk.taken(self._entry_of[slots[asked]])
            starts[asked], counts[asked] = found.starts + first, found.counts
            first += int(found.counts.sum())
            parts.append(found.rows)
        return Rows(starts, counts, joined_rows(parts)) if parts else None

    def have(self, slots: Slots, keys: HashedKeys) -> npt.NDArray[np.bool_]:
        """Return for each slot whether its entry has the key at the same position of `keys`."""
        same = np.ones(len(slots), np.bool_)
        if not keys.columns:
            return same
        for chunk, asked in self._parts(slots):
            entries, wanted = pa.array(self._entry_of[slots[asked]]), pa.array(asked)
            for column, there in zip(keys.columns, chunk.columns, strict=True):
                equal = pc.equal(pc.take(column, wanted), pc.take(there, entries))
                same[asked] &= equal.to_numpy(zero_copy_only=False).astype(np.bool_)
        return same

    def _parts(self, slots: Slots) -> list[tuple[_Chunk, Positions]]:
        """Return the chunks with entries of these slots, each with the positions in `slots` of its entries."""
        chunk_of = self._chunk_of[slots]
        parts = ((chunk, np.flatnonzero(chunk_of == number)) for number, chunk in self._chunks.items())
        return [(chunk, asked) for chunk, asked in parts if len(asked)]

    def _append(
        self,
        slots: Slots,
        columns: tuple[pa.Array, ...],
        rows: Rows,
        weights: Positions,
        number: int | None = None,
    ) -> None:
        last = int(slots.max(initial=-1))
        self._chunk_of, self._entry_of = grown(self._chunk_of, last, _NOWHERE), grown(self._entry_of, last, 0)
        if number is None:
            number, self._next = self._next, self._next + 1
        self._chunks[number] = _Chunk(slots, columns, rows, weights)
        self._chunk_of[slots] = number
        self._entry_of[slots] = np.arange(len(slots))

    def _merge(self, *numbers: int) -> None:
        """Merge the live entries of adjacent chunks into one chunk, which replaces the first."""
        slots, weights, parts = [], [], []
        columns: list[list[pa.Array]] = []
        first = 0
        for number in numbers:
            chunk = self._chunks[number]
            # Slots are reused: this chunk may have several entries of one slot, of which one at most is live.
            here = self._chunk_of[chunk.slots] == number
            here &= self._entry_of[chunk.slots] == np.arange(len(chunk.slots))
            live = np.flatnonzero(here)
            rows, taken = chunk.taken(live), pa.array(live)
            slots.append(chunk.slots[live])
            weights.append(chunk.weights[live])
            columns.append([pc.take(column, taken) for column in chunk.columns])
            parts.append(Rows(rows.starts + first, rows.counts, rows.rows))
            first += int(rows.counts.sum())
        merged = Rows(
            np.concatenate([rows.starts for rows in parts]),
            np.concatenate([rows.counts for rows in parts]),
            joined_rows([rows.rows for rows in parts]),
        )
        for number in numbers[1:]:
            del self._chunks[number]
        joined = tuple(pa.concat_arrays(arrays) for arrays in zip(*columns, strict=True))
        if first or any(map(len, slots)):
            self._append(np.concatenate(slots), joined, merged, np.concatenate(weights), numbers[0])
        else:
            del self._chunks[numbers[0]]
