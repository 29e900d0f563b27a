"""A version between its end in memory and its place in a storage."""

from collections.abc import Mapping
from dataclasses import dataclass

from millpond.errors import OptionError
from millpond.state.backend.protocols import Snapshot
from millpond.state.types.descriptor import StateDescriptor


@dataclass(frozen=True, eq=False)
class PendingCheckpoint:
    """A version that has ended in memory and is not stored yet.

    Attributes:
        version: its number.
        full: whether it was asked to be a full one.
        watermark_ms: the event-time watermark it was ended under, or -1.
        now_ms: the processing time it was ended at, by which values that have outlived their TTL are left out.
        snapshot: the state it holds.
        states: every state declared by then.
        blocking_ns: how long the stream stood still for it; 0 where nobody measures that.
    """

    version: int
    full: bool
    watermark_ms: int
    now_ms: int
    snapshot: Snapshot
    states: Mapping[str, StateDescriptor]
    blocking_ns: int = 0

    def refuse_undeclared(self) -> None:
        """A state that the checkpoint does not know of would be lost without a word."""
        for state in self.snapshot.states():
            if state not in self.states:
                raise OptionError(
                    f"state {state!r} is in use but was not declared to its checkpoints when version {self.version} "
                    "ended. Call declare()."
                )
