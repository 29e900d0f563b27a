"""Changes that no stored version has: what versions that were lost leave to the next one.

A version that could not be stored leaves its delta, which the next version writes too. Where that cannot be kept, the
next version is full, which means all bases and no delta: it needs nothing of what went before.
"""

from collections.abc import Callable

from millpond.state.checkpoint.next_manifest import Delta
from millpond.state.checkpoint.segment_spool import SegmentSpool

MAX_CARRIED_BYTES = 64 << 20
"""Deltas beyond this, as in a long outage of the storage, are given up for a full version."""


class UnstoredChanges:
    """The changes of a shard that the next version must write beside its own."""

    def __init__(self) -> None:
        self._versions: set[int] = set()
        self._deltas: list[Delta] = []
        self._spool = SegmentSpool()

    def leave_to_full(self, version: int) -> None:
        """What changed up to this version is in no segment, nor in a delta."""
        self._versions.add(version)

    def carry(self, version: int, delta: Callable[[SegmentSpool], Delta]) -> None:
        """Keep the delta of a version that was lost, if it can be made and there is room."""
        if not self._deltas:
            self._spool = SegmentSpool()
        try:
            self._deltas.append(delta(self._spool))
        except Exception:  # noqa: BLE001 - why it cannot be encoded is told by the version that needs it
            self._versions.add(version)
        if sum(each.bytes for each in self._deltas) > MAX_CARRIED_BYTES:
            self._versions.update(each.version for each in self._deltas)
            self._deltas.clear()

    def ask_for_full(self, version: int) -> bool:
        """Whether this version must be a full one."""
        return min(self._versions, default=version) < version

    def holds(self, version: int) -> bool:
        """Whether what this version holds is in no segment."""
        return version in self._versions

    def deltas(self, version: int) -> list[Delta]:
        """Of the lost versions before this one."""
        return [delta for delta in self._deltas if delta.version < version]

    def stored(self, version: int) -> None:
        """This version is stored, and so are all changes before it."""
        self._versions = {each for each in self._versions if each >= version}
        self._deltas = [delta for delta in self._deltas if delta.version > version]
