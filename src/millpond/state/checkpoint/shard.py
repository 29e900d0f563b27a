"""A shard in memory, and its way from version to version.

On the data path this is the keyed state of one task: a backend, and the head that says which
durable version its contents are. Each commit writes one *delta* (the cells that the version
changed) and as many cells again of *bases* (whole key groups, in turn), so that a version costs
what it touches, and a restore reads about twice the state at most:

- every key group has a newest base, of some version; the deltas after that version complete it;
- bases go round the key groups in turn, so each gets a new one in time;
- a delta older than every base, and a base whose key groups all have a newer one, is dropped.

Bases of the committed version are prepared between versions (`prepare_bases`), in small steps that
a background thread may take while the stream is idle; what is still owed when the next version
begins is made up then, so the log cannot outgrow its bound.

Invariant: between versions, `head` describes exactly the backend's contents. `stand_at` is the only
way to begin, and it proves that, by going one version back if need be, or says that only a restore
will do.
"""

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from millpond.errors import CorruptionError, OptionError
from millpond.state.backend import Cells, KeyedStateBackend
from millpond.state.checkpoint.head import Head, SegmentRef
from millpond.state.checkpoint.next_head import BASE_STEP_ROWS, Base, encode_base, encode_delta, next_commit
from millpond.state.checkpoint.restoring import in_order, read_segment, segment_name
from millpond.state.checkpoint.segment import CellCodec
from millpond.state.checkpoint.storage import Commit
from millpond.state.descriptor import StateDescriptor
from millpond.state.timers import TIMERS, Timers


class Shard:
    """The state of one shard at one version. Not thread-safe: its owner holds a lock around it."""

    def __init__(self, head: Head, backend: KeyedStateBackend) -> None:
        self.head = head
        self.backend = backend
        self._before: Head | None = None
        # False once a commit could be neither finished nor undone: the contents are of no version.
        self._intact = True
        self.key_schema = pa.ipc.read_schema(pa.py_buffer(head.key_schema))
        self._descriptors: dict[str, StateDescriptor] = {}
        self._codecs: dict[str, CellCodec] = {}
        self._prepared: list[Base] = []
        self._attached: list[Base] = []
        self._timers: Timers | None = None

    @property
    def timers(self) -> Timers:
        """The shard's timers, declared at the first use."""
        if self._timers is None:
            self.declare(TIMERS)
            self._timers = Timers(self.backend, self.head.key_groups)
        return self._timers

    def rollback(self) -> None:
        """Drop every change since the last commit."""
        if self.backend.rollback():
            self._forget_queue()

    def _forget_queue(self) -> None:
        if self._timers is not None:
            self._timers.forget_queue()

    def declare(self, descriptor: StateDescriptor) -> None:
        """Make a state known to the checkpoints of this shard. Refused where it is known as another, even if empty."""
        known = self._descriptors.get(descriptor.name)
        if known is None:
            self._descriptors[descriptor.name] = descriptor
            self._codecs[descriptor.name] = CellCodec(descriptor, self.key_schema)
        elif known != descriptor:
            raise OptionError(
                f"state {descriptor.name!r} is known to its checkpoint as [{known.describe()}] and was declared as "
                f"[{descriptor.describe()}]. Declare it as it was, or give the new state another name."
            )

    def restore(self, segments: Mapping[int, bytes]) -> None:
        """Load the head's version from its segments into the (empty) backend.

        A missing or damaged segment raises a CorruptionError that names it; the shard must then be
        thrown away.
        """
        self._forget_queue()
        for plain in self.head.states:
            self.declare(StateDescriptor.decode(plain))

        def stored(ref: SegmentRef) -> bytes:
            if ref.id not in segments:
                raise CorruptionError(
                    f"{segment_name(self.head, ref)} is missing. The state part of the checkpoint was deleted or is "
                    "incomplete: restore it, or start the query with a new checkpoint folder."
                )
            return segments[ref.id]

        for ref in in_order(self.head):
            table = read_segment(self.head, ref, stored(ref))
            self.backend.load(self._descriptors[ref.state], self._codecs[ref.state].cells(table))

    def stand_at(self, head: Head) -> bool:
        """Begin a version at exactly this head, if memory allows: as it is, or by undoing the last version.

        False means that only a restore will do. Bases still owed to the head are made up here.
        """
        if not self._intact:
            return False
        self.rollback()
        if self.head.stands_with(head):
            self.backend.settle()
        elif self._before is not None and self._before.stands_with(head):
            self.backend.undo_commit()
            self._forget_queue()
            self.head, self._prepared = self._before, self._attached
        else:
            return False
        self._before, self._attached = None, []
        while self.prepare_bases():
            continue
        return True

    def prepare_bases(self) -> bool:
        """Encode the bases of the next few key groups, if any are owed; whether a step was taken.

        Only between versions: what is encoded is the committed version.
        """
        owed = sum(ref.rows for ref in self.head.segments if not ref.base and ref.version == self.head.version)
        owed -= sum(base.rows for base in self._prepared)
        first = self.head.next_base + sum(len(base.positions) for base in self._prepared)
        groups = self.head.key_groups
        if owed <= 0 or first >= self.head.next_base + len(groups):
            return False
        start = first % len(groups)
        base = encode_base(
            groups,
            range(start, len(groups)),
            min(owed, BASE_STEP_ROWS),
            self.head.version,
            self._codecs,
            self.backend.cells,
        )
        self._prepared.append(base)
        return True

    def commit(self, token: str, watermark_ms: int = -1, flushed: Callable[[], object] = lambda: None) -> Commit:
        """End the version under the attempt's token. What is returned must be stored whole or not at all.

        `flushed` is called when the backend has ended its version, caches flushed, and before the delta is encoded.
        """
        snapshot = self.backend.commit()
        flushed()
        try:
            return self._committed(snapshot.changes(), token, watermark_ms)
        except BaseException:
            self._intact = False
            self.backend.undo_commit()
            self._intact = True
            self._forget_queue()
            raise
        finally:
            snapshot.release()

    def _committed(self, changes: Iterable[tuple[str, Cells]], token: str, watermark_ms: int) -> Commit:
        version = self.head.version + 1
        commit = next_commit(
            self.head,
            version=version,
            token=token,
            watermark_ms=watermark_ms,
            states=(descriptor.encode() for descriptor in self._descriptors.values()),
            bases=self._prepared,
            deltas=(encode_delta(version, changes, self._codecs),),
        )
        self._before, self.head = self.head, commit.head
        self._prepared, self._attached = [], self._prepared
        return commit
