"""Reports reads of an `LruStateCache` to a recording of hit-rate curves.

Reported are `get`, `exists`, `update_with`, `add` and batch access of value states, `get` and `exists` of list states,
and `get` and `contains` of map states.

A recorded handle has methods of its own in place of its class's; a handle that is not recorded pays nothing. Writes are
not reported: they read nothing, so they neither hit nor miss.
"""

from collections.abc import Callable
from itertools import repeat
from typing import Any

from millpond.cache.curves.recording import Recording
from millpond.state.backend.batch_access import ManyKeys, ManyValues
from millpond.state.backend.key_context import KeyContext
from millpond.state.wrappers.lru.handles import LruMapState, LruState, LruValueState


def tell_reads(state: LruState, context: KeyContext, recording: Recording) -> None:
    """Report the reads of one state to the recording."""
    name = state.descriptor.name
    if isinstance(state, LruMapState):
        for method in ("get", "contains"):
            setattr(state, method, _told(getattr(state, method), name, context, recording, by_map_key=True))
        return
    is_value = isinstance(state, LruValueState)
    for method in ("get", "exists", "update_with", "add") if is_value else ("get", "exists"):
        setattr(state, method, _told(getattr(state, method), name, context, recording))
    if isinstance(state, LruValueState):
        at_once = state.many()
        told = None if at_once is None else _ToldMany(at_once, name, recording)
        state.many = lambda: told  # type: ignore[assignment,method-assign,return-value]


def _told(
    read: Callable[..., Any], name: str, context: KeyContext, recording: Recording, *, by_map_key: bool = False
) -> Callable[..., Any]:
    asked, limit = 0, recording.limit

    def told(*arguments: Any) -> Any:
        # As in `WatchedCache.get`, nothing of the recording is touched for most keys.
        nonlocal asked, limit
        asked += 1
        spread = hash((name, context.key, *arguments) if by_map_key else (name, context.key))
        if spread < limit:
            recording.requests += asked
            asked = 0
            recording.use(spread)
            limit = recording.limit
        return read(*arguments)

    return told


class _ToldMany:
    """`ManyValues` that report their reads to the recording."""

    def __init__(self, values: ManyValues, name: str, recording: Recording) -> None:
        self._values = values
        self._name = name
        self._asked = recording.asked_cells
        self.update_many = values.update_many

    def get_many(self, many: ManyKeys) -> list[Any]:
        self._tell(many)
        return self._values.get_many(many)

    def add_many(self, many: ManyKeys, number: Any) -> None:
        self._tell(many)
        self._values.add_many(many, number)

    def clear_many(self, many: ManyKeys) -> None:
        self._tell(many)
        self._values.clear_many(many)

    def _tell(self, many: ManyKeys) -> None:
        self._asked(zip(repeat(self._name), many.keys, strict=False), len(many))
