"""Makes the next manifest from the last one: which segments a new version consists of.

It is a pure function, and the one place that keeps the log short. Every key group has a newest *base* of some version,
and the *deltas* after that version complete it. So a delta is dropped once every key group has a base of its version or
later, and a base once all its key groups have a newer one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millpond.state.backend.pairs import Pairs
from millpond.state.backend.protocols import Cells
from millpond.state.checkpoint.format.manifest import Manifest, SegmentRef, check_restores
from millpond.state.checkpoint.format.raw import raw_table
from millpond.state.checkpoint.format.segment import MAX_SEGMENT_BYTES, CellCodec, encode_segments, together
from millpond.state.checkpoint.segment_spool import Part, Segments, SegmentSpool
from millpond.state.checkpoint.storage.interface import Commit

_FIRST_ROWS = 100
_ENCODED_AHEAD = 2
"""Largest number of segments that are encoded, or being encoded, before the oldest is put into the spool."""


class Source(Protocol):
    """The source of bases: a snapshot, or a backend whose state does not change meanwhile."""

    def cells(self, name: str, key_group: int) -> Cells:
        """Return every cell of a state in one key group."""

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Return the same as bytes, or None if there are no bytes."""


Encoded = Callable[[], Sequence[Part]]
"""Waits for segments that are being encoded, and returns them."""

Encode = Callable[[str, Sequence[pa.Table]], Encoded]
"""Turns tables of a state's cells into segments: at once, or in another thread while the next tables are made."""


def at_once(state: str, tables: Sequence[pa.Table]) -> Encoded:
    """Encode in this thread: an `Encode` that is done when it returns."""
    parts = list(_parts(state, tables))
    return lambda: parts


def beside(thread: Executor) -> Encode:
    """Return an `Encode` in another thread. Most of its work is Arrow's and the hash's, which needs no interpreter."""
    return lambda state, tables: thread.submit(list, _parts(state, tables)).result


@dataclass(frozen=True)
class Delta:
    """The encoded changes of one version."""

    version: int
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """The number of changed cells."""
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        """The size of all segments."""
        return sum(part.length for part in self.parts)


@dataclass(frozen=True)
class Base:
    """The encoded bases of a run of key groups.

    Attributes:
        version: the version whose cells they hold.
        positions: the key groups, counted from the shard's first.
        rows: number of cells in all.
        parts: the segments.
    """

    version: int
    positions: range
    rows: int
    parts: tuple[Part, ...]


class _Tables:
    """Turns tables of one state into segments of about their full size."""

    def __init__(self, state: str, encode: Encode) -> None:
        self._state = state
        self._encoded = encode
        self._tables: list[pa.Table] = []
        self.room = MAX_SEGMENT_BYTES

    def add(self, table: pa.Table) -> Iterator[Encoded]:
        """Add a table, and yield the segment that is full."""
        self._tables.append(table)
        self.room -= table.nbytes
        # Leaving the last quarter of a segment empty saves another small table.
        if self.room < MAX_SEGMENT_BYTES // 4:
            yield from self.end()

    def end(self) -> Iterator[Encoded]:
        """Yield the segment of the remaining tables."""
        if self._tables:
            tables, self._tables, self.room = self._tables, [], MAX_SEGMENT_BYTES
            yield self._encoded(self._state, tables)


class _Encoder:
    """Turns the cells of one state, which come in pieces, into segments of about their full size.

    Arrow makes a column in one call, which no other thread can interrupt, and freeing thousands of objects is one step
    too. So no more cells are converted at once than a segment holds. A column of a whole large delta would block the
    stream while its checkpoint is written, and need as much memory again.
    """

    def __init__(self, state: str, codec: CellCodec, encode: Encode) -> None:
        self._codec = codec
        self._tables = _Tables(state, encode)
        self._pieces: list[Cells] = []
        self._rows = 0
        # Number of rows that fit into the remaining room, by the size of the last ones.
        self._wanted = _FIRST_ROWS

    def add(self, cells: Cells) -> Iterator[Encoded]:
        """Add cells, and yield the segments that are full."""
        self._pieces.append(cells)
        self._rows += len(cells)
        if self._rows < self._wanted:
            return
        first, cells = 0, _joined(self._pieces)
        self._pieces = []
        while self._rows >= self._wanted:
            part = cells.part(first, self._wanted)
            first += len(part)
            self._rows -= len(part)
            yield from self._encode(part)
        self._pieces = [cells.part(first, self._rows)] if self._rows else []

    def end(self) -> Iterator[Encoded]:
        """Yield the segments of the remaining cells."""
        if self._rows:
            yield from self._encode(_joined(self._pieces))
        yield from self._tables.end()

    def _encode(self, cells: Cells) -> Iterator[Encoded]:
        table = self._codec.table(cells)
        yield from self._tables.add(table)
        self._wanted = max(1, self._tables.room * table.num_rows // max(1, table.nbytes))


def encode_delta(
    version: int,
    changes: Iterable[tuple[str, Cells]],
    codecs: Mapping[str, CellCodec],
    spool: SegmentSpool,
) -> Delta:
    """Encode a version's changes, which come by state in any number of pieces. The segments wait in the spool."""

    def encoded() -> Iterator[Encoded]:
        encoders: dict[str, _Encoder] = {}
        for state, cells in changes:
            if state not in encoders:
                encoders[state] = _Encoder(state, codecs[state], at_once)
            yield from encoders[state].add(cells)
        for encoder in encoders.values():
            yield from encoder.end()

    return Delta(version, _spooled(encoded(), spool))


def _spooled(encoded: Iterator[Encoded], spool: SegmentSpool) -> tuple[Part, ...]:
    """Put each segment into the spool as soon as it is encoded. No more than a few are encoded ahead."""
    waiting: deque[Encoded] = deque()
    parts: list[Part] = []
    for each in encoded:
        waiting.append(each)
        if len(waiting) > _ENCODED_AHEAD:
            parts += map(spool.kept, waiting.popleft()())
    while waiting:
        parts += map(spool.kept, waiting.popleft()())
    return tuple(parts)


def _parts(state: str, tables: Sequence[pa.Table]) -> Iterator[Part]:
    for part, data in encode_segments(together(tables).combine_chunks() if len(tables) > 1 else tables[0]):
        groups = pc.min_max(part["key_group"]).as_py()
        yield Part.of(state, part.num_rows, groups["min"], groups["max"], data)


def encode_base(
    key_groups: range,
    positions: range,
    wanted_rows: int,
    version: int,
    codecs: Mapping[str, CellCodec],
    source: Source,
    encode: Encode,
    spool: SegmentSpool,
) -> Base:
    """Encode bases of the first of these positions, as many as it takes to hold the wanted rows.

    Bytes of the source are copied as they are. `encode` makes segments, which wait in the spool.
    """
    encoders: dict[str, _Encoder] = {}
    copied: dict[str, _Tables] = {}
    rows, stop = 0, positions.start

    def encoded() -> Iterator[Encoded]:
        nonlocal rows, stop
        while stop < positions.stop and rows < wanted_rows:
            for name, codec in codecs.items():
                pairs = source.raw_cells(name, key_groups[stop])
                if pairs is None:
                    found = source.cells(name, key_groups[stop])
                    rows += len(found)
                    yield from encoders.setdefault(name, _Encoder(name, codec, encode)).add(found)
                elif pairs:
                    rows += len(pairs)
                    yield from copied.setdefault(name, _Tables(name, encode)).add(raw_table(key_groups[stop], pairs))
            stop += 1
        for encoder in encoders.values():
            yield from encoder.end()
        for tables in copied.values():
            yield from tables.end()

    parts = _spooled(encoded(), spool)
    return Base(version, range(positions.start, stop), rows, parts)


def _joined(pieces: Sequence[Cells]) -> Cells:
    if len(pieces) == 1:
        return pieces[0]
    is_map = pieces[0].map_keys is not None
    return Cells(
        key_groups=list(chain.from_iterable(piece.key_groups for piece in pieces)),
        keys=list(chain.from_iterable(piece.keys for piece in pieces)),
        map_keys=list(chain.from_iterable(piece.map_keys or () for piece in pieces)) if is_map else None,
        values=list(chain.from_iterable(piece.values for piece in pieces)),
    )


def next_commit(
    manifest: Manifest,
    *,
    version: int,
    token: str,
    watermark_ms: int,
    processing_ms: int,
    states: Iterable[dict[str, Any]],
    bases: Sequence[Base],
    deltas: Sequence[Delta],
) -> Commit:
    """Return the version that follows `manifest` when these bases and deltas are added, and the segments it drops.

    Raises DataError if the version could not be restored.
    """
    base_versions = list(manifest.base_versions)
    added: list[tuple[Part, bool, int]] = []
    for base in bases:
        added += [(part, True, base.version) for part in base.parts]
        for position in base.positions:
            base_versions[position] = base.version
    added += [(part, False, delta.version) for delta in deltas for part in delta.parts]
    refs = [
        SegmentRef(
            id=segment_id,
            base=is_base,
            version=made,
            state=part.state,
            first_group=part.first_group,
            last_group=part.last_group,
            rows=part.rows,
            bytes=part.length,
            checksum=part.checksum,
        )
        for segment_id, (part, is_base, made) in enumerate(added, manifest.next_segment)
    ]
    first_group = manifest.key_groups.start

    def needed(ref: SegmentRef) -> bool:
        """Return whether any key group in the segment's range still depends on it."""
        if not ref.base:
            return ref.version > min(base_versions)
        groups = range(ref.first_group, ref.last_group + 1)
        return any(base_versions[group - first_group] <= ref.version for group in groups)

    following = msgspec.structs.replace(
        manifest,
        version=version,
        token=token,
        watermark_ms=watermark_ms,
        processing_ms=processing_ms,
        states=tuple(states),
        segments=tuple(ref for ref in (*manifest.segments, *refs) if needed(ref)),
        base_versions=tuple(base_versions),
        next_base=(manifest.next_base + sum(len(base.positions) for base in bases)) % len(base_versions),
        next_segment=manifest.next_segment + len(refs),
    )
    check_restores(following)
    return Commit(
        manifest=following,
        segments=Segments({ref.id: part.read for ref, (part, _, _) in zip(refs, added, strict=True) if needed(ref)}),
        dropped=tuple(ref.id for ref in manifest.segments if not needed(ref)),
        parent=manifest,
    )
