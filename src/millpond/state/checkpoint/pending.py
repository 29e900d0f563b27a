"""A version that has ended in memory and is not stored yet."""

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
        full: whether a full checkpoint was asked for.
        watermark_ms: the event-time watermark under which it ended, or -1.
        now_ms: the processing time at which it ended, by which expired values are left out.
        snapshot: the state it holds.
        states: every state declared by then.
        blocking_ns: how long it blocked the stream; 0 if nobody measures that.
    """

    version: int
    full: bool
    watermark_ms: int
    now_ms: int
    snapshot: Snapshot
    states: Mapping[str, StateDescriptor]
    blocking_ns: int = 0

    def refuse_undeclared(self) -> None:
        """Raise an OptionError if a state in use is unknown to the checkpoint, which would lose it silently."""
        for state in self.snapshot.states():
            if state not in self.states:
                raise OptionError(
                    f"state {state!r} is in use but was not declared to its checkpoints when version {self.version} "
                    "ended. Call declare()."
                )
