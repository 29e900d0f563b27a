"""Millpond keeps the state of PySpark streams warm.

This module re-exports the errors, and defines only the version.
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
    """Return `__version__` from the installed package's metadata. It is read at use, since that takes a millisecond."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("millpond")
