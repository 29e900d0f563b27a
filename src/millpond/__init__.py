"""Millpond keeps the state of PySpark streams warm.

The public names are re-exported here; nothing is defined here but the version.
"""

from typing import Any

from millpond.errors import (
    CorruptionError,
    DataError,
    MillpondError,
    MissingDependencyError,
    OptionError,
    UnavailableError,
)

__all__ = [
    "CorruptionError",
    "DataError",
    "MillpondError",
    "MissingDependencyError",
    "OptionError",
    "UnavailableError",
]


def __getattr__(name: str) -> Any:
    """`__version__`, read from the installed package's metadata when it is asked for: that takes a millisecond."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("millpond")
