"""The default weigher: an estimate of an entry's bytes in this process.

It adds up `sys.getsizeof` over containers and instances, and what the entry costs the cache itself.
The estimate has three limits:

- Memory inside C extensions is counted only if the object has `nbytes` (numpy, Arrow).
- An object that two entries share is counted in both.
- The allocator's rounding is not counted.

A walk costs about a microsecond per object. So a cache on a hot path passes its own weigher, such as
`len` of encoded bytes.
"""

import sys
from types import BuiltinFunctionType, FunctionType, ModuleType

ENTRY_BYTES = 400
"""Bytes of the cache's own structures per entry: a node, and a slot in each of its tables."""

_LEAVES = (
    str,
    bytes,
    bytearray,
    int,
    float,
    bool,
    complex,
    type(None),
    type,
    FunctionType,
    BuiltinFunctionType,
    ModuleType,
)


def deep_size(key: object, value: object) -> int:
    """Estimate the bytes of one cached entry, including its key and the cache's structures.

    >>> deep_size("key", "x" * 1_000) - deep_size("key", "")
    1000
    >>> deep_size("key", ["x" * 1_000]) > 1_400
    True
    """
    seen: set[int] = set()
    pending = [key, value]
    total = ENTRY_BYTES
    while pending:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        total += _own_size(thing)
        if not isinstance(thing, _LEAVES):
            pending.extend(_parts(thing))
    return total


def _own_size(thing: object) -> int:
    own = sys.getsizeof(thing, 64)
    payload = getattr(thing, "nbytes", None)
    return max(own, payload + 64) if isinstance(payload, int) else own


def _parts(thing: object) -> list[object]:
    if isinstance(thing, dict):
        return [*thing.keys(), *thing.values()]
    if isinstance(thing, (list, tuple, set, frozenset)):
        return list(thing)
    parts: list[object] = []
    attributes = getattr(thing, "__dict__", None)
    if attributes is not None:
        parts.append(attributes)
    for cls in type(thing).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        parts.extend(getattr(thing, name) for name in names if hasattr(thing, name))
    return parts
