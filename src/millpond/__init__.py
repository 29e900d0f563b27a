"""Millpond keeps the state of PySpark streams warm.

The public names are re-exported here; nothing is defined here.
"""

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
