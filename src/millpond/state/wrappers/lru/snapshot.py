"""A committed version of an `LruStateCache`: the backend's snapshot under the entries it had not been given.

The backend may lag behind the cache, so a version is two things laid over each other, and the cache's
come first. What the backend was given in this version only because it left the cache, and was changed
by earlier versions, is no change of this one: it is left out, so that deltas do not grow by evictions.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from millpond.state.backend.pairs import Pairs
from millpond.state.backend.protocols import Cells, Snapshot
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.rows import Row
from millpond.state.wrappers.lru.entries import Bucket, Entry, as_changes, overlaid, overlaid_pairs, places, selected


class Part(NamedTuple):
    """What a bucket gives to a snapshot: references, none of which changes any more. See `Bucket`."""

    dirty: dict[Row, Entry]
    carried: set[Row]
    opened: int

    def changed(self) -> list[Entry]:
        """Of the dirty ones, what the version changed."""
        return [entry for entry in self.dirty.values() if entry.version >= self.opened]


class LruSnapshot:
    """A `Snapshot`; `parts` by state and key group, of the states of these descriptors."""

    def __init__(
        self, inner: Snapshot, parts: dict[str, dict[int, Part]], descriptors: Mapping[str, StateDescriptor]
    ) -> None:
        self._inner = inner
        self._parts = parts
        self._descriptors = descriptors
        self._replaced: list[dict[Row, Entry]] = []
        self._released = False

    def keep(self, replaced: list[dict[Row, Entry]]) -> None:
        """Have what nobody needs any more freed with this snapshot: it takes long, and no record waits for that."""
        if not self._released:
            self._replaced += replaced

    def states(self) -> Collection[str]:
        """The names of the states: the backend knows every one that the cache does."""
        return self._inner.states()

    def changes(self) -> Iterator[tuple[str, Cells]]:
        """The cache's changed entries, then what the backend was given of this version's changes."""
        for name, parts in self._parts.items():
            changed = [entry for part in parts.values() for entry in part.changed()]
            if changed:
                yield name, as_changes(changed)
        for name, cells in self._inner.changes():
            yield name, _without(cells, self._parts.get(name, {}))

    def cells(self, name: str, key_group: int) -> Cells:
        """The backend's cells, with the cache's laid over them."""
        cells = self._inner.cells(name, key_group)
        part = self._parts.get(name, {}).get(key_group)
        return cells if part is None else overlaid(cells, part.dirty)

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Every cell of a state in one key group as bytes; None where they are not as such."""
        pairs, part = self._inner.raw_cells(name, key_group), self._parts.get(name, {}).get(key_group)
        if pairs is None or part is None:
            return pairs
        return overlaid_pairs(pairs, self._descriptors[name], part.dirty)

    def release(self) -> None:
        """Let go of both. Idempotent."""
        self._released = True
        # A bucket at a time, so that another thread can go on in between.
        while self._replaced:
            self._replaced.pop()
        for parts in self._parts.values():
            while parts:
                parts.popitem()
        self._inner.release()


def part_of(bucket: Bucket, opened: int) -> Part:
    """The part of a bucket in the version that is being committed, which began with the number `opened`."""
    return Part(bucket.dirty, bucket.carried, opened)


def _without(cells: Cells, parts: dict[int, Part]) -> Cells:
    """The backend's changes that are neither carried from earlier versions nor changed again in the cache."""
    if not parts:
        return cells
    nothing = Part({}, set(), 0)
    keep = []
    for key_group, cell in zip(cells.key_groups, places(cells), strict=True):
        part = parts.get(key_group, nothing)
        keep.append(cell not in part.dirty and cell not in part.carried)
    return cells if all(keep) else selected(cells, keep)
