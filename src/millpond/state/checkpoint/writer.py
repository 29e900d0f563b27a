"""What goes into a checkpoint of one shard: the one writer, on Spark and off it.

A version is stored as one *delta* (the cells that it changed) and about as many bytes of *bases* (whole key groups, in
turn). So it costs what it touches, and a restore reads at most about twice the state. `next_manifest` says when a delta
and a base are dropped.

The writer determines what a version consists of. `Shard` decides when, and whether bases are made from the live backend
between two versions or from a snapshot while records flow.

Bases leave out expired values. Live state still has them, and only the thread that processes records may change that.
So a round notes where its bases left something out, and `remove_expired` removes it from live state, one key group at a
time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import is_not

import pyarrow as pa

from millpond.state.backend.expiry import alive, removals
from millpond.state.backend.pairs import Pairs
from millpond.state.backend.protocols import Cells, KeyedStateBackend, Snapshot
from millpond.state.checkpoint.format.manifest import Manifest
from millpond.state.checkpoint.format.segment import CellCodec
from millpond.state.checkpoint.next_manifest import Base, Delta, Encode, Source, at_once, encode_base, encode_delta
from millpond.state.checkpoint.raw_expiry import living_pairs
from millpond.state.checkpoint.segment_spool import SegmentSpool
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.ttl import Ttl

BASE_STEP_ROWS = 50_000
"""Approximate number of rows of one step of a round. Key groups are not divided."""


@dataclass
class Round:
    """The bases that go with one version, as far as they are encoded.

    Attributes:
        manifest: the one to which they are added. Its `next_base` says which key group comes first.
        owed_rows: how many rows they should hold; None for every key group.
        outlived: state and key group of expired cells that bases left out and live state still has. Each use is one
            step of the interpreter, so that another thread may remove items.
        spool: where the segments wait.
        bases: those that are encoded.
    """

    manifest: Manifest
    owed_rows: int | None
    outlived: dict[tuple[str, int], None] = field(default_factory=dict)
    spool: SegmentSpool = field(default_factory=SegmentSpool)
    bases: list[Base] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether it holds every key group."""
        return self.owed_rows is None


class CheckpointWriter:
    """Encodes the versions of one shard.

    Attributes:
        states: every state that the checkpoints know, by name.
    """

    def __init__(self, key_schema: pa.Schema) -> None:
        self.states: dict[str, StateDescriptor] = {}
        self._key_schema = key_schema
        self._codecs: dict[str, CellCodec] = {}

    def declare(self, descriptor: StateDescriptor) -> None:
        """Make a state known to the checkpoints from now on."""
        # The codec first, so that another thread that sees the state finds its codec.
        self._codecs[descriptor.name] = CellCodec(descriptor, self._key_schema)
        self.states[descriptor.name] = descriptor

    def delta(self, version: int, snapshot: Snapshot, spool: SegmentSpool) -> Delta:
        """Encode the changes of a version."""
        return encode_delta(version, snapshot.changes(), self._codecs, spool)

    def add_bases(
        self,
        to: Round,
        source: Source,
        version: int,
        now_ms: int,
        states: Mapping[str, StateDescriptor],
        encode: Encode = at_once,
    ) -> bool:
        """Encode the bases of the next few key groups of a round. Return False if no more are owed.

        Args:
            to: the round.
            source: holds the cells.
            version: the version of the source's cells.
            now_ms: the time by which values have expired.
            states: those that existed at that version.
            encode: makes segments, here or in another thread.
        """
        groups = to.manifest.key_groups
        turn = sum(len(base.positions) for base in to.bases)
        wanted = BASE_STEP_ROWS
        if to.owed_rows is not None:
            wanted = min(wanted, to.owed_rows - sum(base.rows for base in to.bases))
        if wanted <= 0 or turn >= len(groups):
            return False
        living = _Living(source, states, to, now_ms)
        start = (to.manifest.next_base + turn) % len(groups)
        to.bases.append(
            encode_base(
                groups,
                range(start, min(len(groups), start + len(groups) - turn)),
                wanted,
                version,
                {name: self._codecs[name] for name in states},
                living,
                encode,
                to.spool,
            )
        )
        return True

    def remove_expired(self, backend: KeyedStateBackend, name: str, key_group: int) -> int:
        """Remove expired cells from live state, in the open version. Return how many cells were checked."""
        ttl = self.states[name].ttl
        if ttl is None:
            return 0
        cells = backend.cells(name, key_group)
        expired = removals(cells, ttl, backend.context.now_ms)
        if len(expired):
            backend.write(name, expired)
        return len(cells)


class _Living:
    """A `Source` without the cells of another that expired, if the TTL's `clean_up` asks for that."""

    def __init__(self, source: Source, states: Mapping[str, StateDescriptor], to: Round, now_ms: int) -> None:
        self._source = source
        self._states = states
        self._to = to
        self._now_ms = now_ms

    def cells(self, name: str, key_group: int) -> Cells:
        found, ttl = self._source.cells(name, key_group), self._states[name].ttl
        if ttl is None or not self._leaves_out(ttl):
            return found
        kept = alive(found, ttl, self._now_ms)
        if len(kept) < len(found) or any(map(is_not, kept.values, found.values)):
            self._note(ttl, name, key_group)
        return kept

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        pairs, descriptor = self._source.raw_cells(name, key_group), self._states[name]
        ttl = descriptor.ttl
        if pairs is None or ttl is None or not self._leaves_out(ttl):
            return pairs
        living, gone = living_pairs(descriptor, ttl, key_group, pairs, self._now_ms)
        if len(gone):
            self._note(ttl, name, key_group)
        return living

    def _leaves_out(self, ttl: Ttl) -> bool:
        return ttl.leaves_snapshots if self._to.full else "compaction" in ttl.clean_up

    def _note(self, ttl: Ttl, name: str, key_group: int) -> None:
        if "compaction" in ttl.clean_up:
            self._to.outlived[name, key_group] = None
