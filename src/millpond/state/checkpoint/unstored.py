"""Changes that no stored version has: what lost versions leave to the next one.

A version that could not be stored leaves its delta, which the next version writes too. If the delta cannot be kept, the
next version is full (all bases and no delta), so it needs nothing of earlier versions.
"""

from collections.abc import Callable

from millpond.state.checkpoint.next_manifest import Delta
from millpond.state.checkpoint.segment_spool import SegmentSpool

MAX_CARRIED_BYTES = 64 << 20
"""Size above which carried deltas, as in a long outage of the storage, are dropped in favour of a full version."""


class UnstoredChanges:
    """The changes of a shard that the next version must write beside its own."""

    def __init__(self) -> None:
        self._versions: set[int] = set()
        self._deltas: list[Delta] = []
        self._spool = SegmentSpool()

    def leave_to_full(self, version: int) -> None:
        """Take note that changes up to this version are in no segment and in no delta."""
        self._versions.add(version)

    def carry(self, version: int, delta: Callable[[SegmentSpool], Delta]) -> None:
        """Keep the delta of a lost version, if it can be encoded and there is room."""
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
        """Return whether this version must be a full one."""
        return min(self._versions, default=version) < version

    def holds(self, version: int) -> bool:
        """Return whether this version's contents are in no segment."""
        return version in self._versions

    def deltas(self, version: int) -> list[Delta]:
        """Return the deltas of the lost versions before this one."""
        return [delta for delta in self._deltas if delta.version < version]

    def stored(self, version: int) -> None:
        """Take note that this version is stored, and so are all changes before it."""
        self._versions = {each for each in self._versions if each >= version}
        self._deltas = [delta for delta in self._deltas if delta.version > version]
