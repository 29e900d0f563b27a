"""Estimates of the bytes that Python objects take, for caches that are bounded by bytes.

CPython's allocator hands out multiples of 16 bytes. Objects that CPython shares (None, booleans, whole
numbers from -5 to 256) take nothing.
"""

import sys
from typing import Any

_SMALLEST_SHARED, _LARGEST_SHARED = -5, 256


def value_bytes(value: Any) -> int:
    """Return the bytes of one number, text, bytes object or None.

    >>> value_bytes(None), value_bytes(7), value_bytes(1 << 70)
    (0, 0, 48)
    """
    if value is None or value is True or value is False:
        return 0
    if type(value) is int and _SMALLEST_SHARED <= value <= _LARGEST_SHARED:
        return 0
    return (sys.getsizeof(value) + 15) & -16
