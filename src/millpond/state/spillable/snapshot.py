"""A committed version of a heap that spills: the heap's snapshot, which can also return bytes, and can be given up.

State on disk is read like state on the heap: the present table, overlaid with the old values of later changes
(`millpond.state.heap.tables`). So a snapshot holds no pages of a spill file, and they can be reused at once. A key
group may move either way while it is read.
"""

# ruff: noqa: D102 - the protocols in backend/ say what the methods do
from collections.abc import Collection, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from millpond.errors import UnavailableError
from millpond.state.backend.cell_bytes import laid_over
from millpond.state.backend.pairs import Pairs
from millpond.state.backend.protocols import Cells, Snapshot
from millpond.state.heap.versions import Version, undo_after
from millpond.state.spillable.migration import SpilledState
from millpond.state.spillable.spilled_tables import SpilledMapTable, SpilledTable

_first, _second = itemgetter(0), itemgetter(1)


class Held(NamedTuple):
    """One state, and the version of it that a snapshot holds."""

    state: SpilledState
    version: Version


class SpillableSnapshot:
    """A `Snapshot` that can also return bytes, and be given up."""

    def __init__(self, snapshot: Snapshot, held: Mapping[str, Held]) -> None:
        self._snapshot = snapshot
        self._held: Mapping[str, Held] = held
        self._gave_up = False

    @property
    def in_use(self) -> bool:
        """Whether it may still be read."""
        return bool(self._held)

    def states(self) -> Collection[str]:
        self._check()
        return self._snapshot.states()

    def changes(self) -> Iterator[tuple[str, Cells]]:
        self._check()
        for piece in self._snapshot.changes():
            yield piece
            self._check()

    def changed_cells(self) -> Mapping[str, int] | None:
        """None: a full version would read key groups on disk."""
        return None

    def cells(self, name: str, key_group: int) -> Cells:
        self._check()
        return self._snapshot.cells(name, key_group)

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Return the same as bytes, for `cell_bytes` to read, in the order of places; None if they are not on disk."""
        self._check()
        held = self._held.get(name)
        return None if held is None else raw_cells(held, key_group)

    def give_up(self) -> None:
        """Release it while it may be in use. Later reads raise an UnavailableError that says why."""
        if self.in_use:
            self._gave_up = True
            self.release()

    def release(self) -> None:
        self._held = {}
        self._snapshot.release()

    def _check(self) -> None:
        if self._gave_up:
            raise UnavailableError(
                "this checkpoint was given up because state had to be spilled. Its changes go with the next one. Set "
                "state.backend.spillable.cancel.checkpoint = false to have spilling wait for checkpoints."
            )


def raw_cells(held: Held, key_group: int) -> Pairs | None:
    """Return every cell of a state in a key group, as of a version, as bytes; None if the group is not on disk."""
    table = held.state.heap.tables.live.get(key_group)
    if not isinstance(table, SpilledTable | SpilledMapTable):
        return None
    is_map = held.state.is_map
    # The order matters: see the invariant of `spilled_tables`.
    overlay: dict[Any, Any] = table.unwritten()
    pairs = Pairs([], [])
    for piece in table.scanned_pieces(table.form.prefix):
        # Split into columns while the pairs are still in the processor's cache.
        pairs.places.extend(map(_first, piece))
        pairs.stored.extend(map(_second, piece))
    if table.successor is not None:
        return None
    for undo in reversed(undo_after(held.version, key_group)):
        _lay_over(overlay, undo, is_map=is_map)
    return laid_over(held.state.form, pairs, overlay)


def _lay_over(overlay: dict[Any, Any], undo: dict[Any, Any], *, is_map: bool) -> None:
    if not is_map:
        overlay |= undo
        return
    for key, old_entries in undo.items():
        overlay.setdefault(key, {}).update(old_entries.copy())
