"""How many rows of bases a version owes to the log, by the bytes of the deltas since bases were last written.

Bases keep the log short, and should not cost more than the deltas that they replace. Rows do not measure that: the
delta of a list that grew is a row, and so is the whole list in a base. So bytes are compared, by the mean size of the
existing bases. Bases consist of whole key groups, so less than one key group stays owed until it adds up to one.

Additions to lists count three quarters. Then deltas and bases together are at most twice the bytes of the elements that
were added, and a restore reads a little more than twice the bytes of the lists.

A version that changed most of each state is written as bases only. A delta and as many bytes of bases would be up to
twice the state.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from millpond.state.backend.protocols import Snapshot
from millpond.state.checkpoint.format.manifest import Manifest
from millpond.state.types.descriptor import StateDescriptor

_SHARE_OF_LISTS = 0.75
_MOST = 0.75
"""The share of each state's cells from which on a version is full: it then writes at most a third more than its delta,
which someone waits for, and no bases afterwards."""


class Written(NamedTuple):
    """A segment of a delta."""

    state: str
    rows: int
    bytes: int


def owed_rows(manifest: Manifest, following: Iterable[Written] = ()) -> int:
    """Return how many rows to write as bases, for the deltas of a manifest and those that follow it.

    If there are no bases to estimate from, it is as many rows as the deltas have.
    """
    last = max(manifest.base_versions, default=-1)
    refs = manifest.segments
    deltas = [Written(ref.state, ref.rows, ref.bytes) for ref in refs if not ref.base and ref.version > last]
    deltas += following
    bases = [Written(ref.state, ref.rows, ref.bytes) for ref in refs if ref.base]
    if not bases:
        return sum(delta.rows for delta in deltas)
    lists = {plain["name"] for plain in manifest.states if plain["kind"] == "list"}
    size = sum(delta.bytes * (_SHARE_OF_LISTS if delta.state in lists else 1) for delta in deltas)
    base_rows = sum(base.rows for base in bases)
    # There may be fewer key groups than that with any cells.
    key_groups = min(base_rows, sum(version >= 0 for version in manifest.base_versions))
    based_at = sorted(manifest.base_versions)
    # Lists have grown by their deltas, in the key groups whose bases are older than the delta.
    grown = sum(ref.bytes * bisect_left(based_at, ref.version) for ref in refs if not ref.base and ref.state in lists)
    held = sum(base.bytes for base in bases) + grown / len(based_at)
    owed = int(size * key_groups / held)
    # Minus half a key group, so that an amount of about a number of key groups gives that number.
    return max(0, round((owed - 0.5) * base_rows / key_groups))


def rather_full(manifest: Manifest, snapshot: Snapshot, states: Iterable[StateDescriptor]) -> bool:
    """Return whether a version after this manifest changed so many cells of each state that it should be a full one.

    Each state counts by itself, since cells of different states differ in size. It should not be full if a state has a
    TTL: incremental bases are what removes its expired values from live state.
    """
    if any(state.ttl is not None for state in states):
        return False
    changed = snapshot.changed_cells()
    if changed is None or not any(changed.values()):
        return False
    based = Counter[str]()
    for ref in manifest.segments:
        if ref.base:
            based[ref.state] += ref.rows
    return all(changed.get(state, 0) >= _MOST * rows for state, rows in based.items())
