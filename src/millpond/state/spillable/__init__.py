"""The heap that spills (FLIP-50): state in memory, and cold key groups on disk when memory runs short."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millpond.state.spillable.options import SpillableSettings

if TYPE_CHECKING:
    from millpond.state.spillable.backend import SpillableBackend
    from millpond.state.spillable.statistics import SpillStats

__all__ = ["SpillStats", "SpillableBackend", "SpillableSettings"]

_MODULES = {"SpillStats": "statistics", "SpillableBackend": "backend"}


def __getattr__(name: str) -> Any:
    """Import the backend at its first use: checkpoints of every backend need a module of this package, and no more."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
