"""The heap that spills (FLIP-50): state in memory, and cold key groups on disk when memory runs short."""

from millpond.state.spillable.backend import KeyGroupTemperature, SpillableBackend, SpillStats
from millpond.state.spillable.options import SpillableSettings

__all__ = ["KeyGroupTemperature", "SpillStats", "SpillableBackend", "SpillableSettings"]
