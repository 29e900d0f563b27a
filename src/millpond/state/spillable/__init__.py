"""The heap that spills (FLIP-50): state in memory, and cold key groups on disk when memory runs short."""

from millpond.state.spillable.backend import SpillableBackend
from millpond.state.spillable.census import SpillStats
from millpond.state.spillable.options import SpillableSettings

__all__ = ["SpillStats", "SpillableBackend", "SpillableSettings"]
