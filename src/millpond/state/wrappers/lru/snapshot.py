"""A committed version of an `LruStateCache`: the backend's snapshot, with the entries that were dirty put over it.

The backend may lag behind the cache, so a version consists of both, and the cache's entries come first. A cell that
earlier versions changed, and that the backend was given in this version only because it left the cache, is no change
of this version. It is left out, so that evictions do not make deltas larger.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from millpond.state.backend.pairs import Pairs
from millpond.state.backend.protocols import Cells, Snapshot
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.rows import Row
from millpond.state.wrappers.lru.entries import Entry, as_changes, overlaid, overlaid_pairs, places


class Part(NamedTuple):
    """What a `Bucket` contributes to a snapshot: objects that do not change any more. The version began as `opened`."""

    dirty: dict[Row, Entry]
    carried: set[Row]
    opened: int

    def changed(self) -> list[Entry]:
        """Return the dirty entries that the version changed."""
        return [entry for entry in self.dirty.values() if entry.version >= self.opened]


class LruSnapshot:
    """A `Snapshot` of an `LruStateCache`. `parts` are by state and key group, `descriptors` those of these states."""

    def __init__(
        self, inner: Snapshot, parts: dict[str, dict[int, Part]], descriptors: Mapping[str, StateDescriptor]
    ) -> None:
        self._inner = inner
        self._parts = parts
        self._descriptors = descriptors
        self._replaced: list[dict[Row, Entry]] = []
        self._released = False

    def keep(self, replaced: list[dict[Row, Entry]]) -> None:
        """Free these together with this snapshot, because freeing takes long and then no record waits for it."""
        if not self._released:
            self._replaced += replaced

    def states(self) -> Collection[str]:
        """Return the names of the states: the backend knows every state that the cache knows."""
        return self._inner.states()

    def changes(self) -> Iterator[tuple[str, Cells]]:
        """Yield the cache's changed entries, then those of this version's changes that the backend was given."""
        for name, parts in self._parts.items():
            changed = [entry for part in parts.values() for entry in part.changed()]
            if changed:
                yield name, as_changes(changed)
        for name, cells in self._inner.changes():
            yield name, _without(cells, self._parts.get(name, {}))

    def changed_cells(self) -> Mapping[str, int] | None:
        """None: the cache's changes and the backend's overlap."""
        return None

    def cells(self, name: str, key_group: int) -> Cells:
        """Return the backend's cells, with the cache's entries put over them."""
        cells = self._inner.cells(name, key_group)
        part = self._parts.get(name, {}).get(key_group)
        return cells if part is None else overlaid(cells, part.dirty)

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Return the same as bytes; None if there are no bytes."""
        pairs, part = self._inner.raw_cells(name, key_group), self._parts.get(name, {}).get(key_group)
        if pairs is None or part is None:
            return pairs
        return overlaid_pairs(pairs, self._descriptors[name], part.dirty)

    def release(self) -> None:
        """Release the backend's snapshot and the cache's part. Idempotent."""
        self._released = True
        # One bucket at a time, so that another thread can run in between.
        while self._replaced:
            self._replaced.pop()
        for parts in self._parts.values():
            while parts:
                parts.popitem()
        self._inner.release()


def _without(cells: Cells, parts: dict[int, Part]) -> Cells:
    """Return the backend's changes that are neither carried from earlier versions nor changed again in the cache."""
    if not parts:
        return cells
    nothing = Part({}, set(), 0)
    keep = []
    for key_group, cell in zip(cells.key_groups, places(cells), strict=True):
        part = parts.get(key_group, nothing)
        keep.append(cell not in part.dirty and cell not in part.carried)
    return cells if all(keep) else cells.where(keep)
