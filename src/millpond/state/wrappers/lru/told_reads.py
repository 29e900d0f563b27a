"""Lets a recording of hit-rate curves hear of every read of an `LruStateCache`.

A handle that is recorded has methods of its own in place of its class's; one that is not pays nothing. Writes are not
told: they read nothing, so they neither hit nor miss.
"""

from collections.abc import Callable
from typing import Any

from millpond.cache.curves.recording import Recording
from millpond.state.backend.protocols import KeyContext
from millpond.state.wrappers.lru.handles import LruMapState, LruState


def tell_reads(state: LruState, context: KeyContext, recording: Recording) -> None:
    """Let the recording hear of the reads of one state."""
    tell = _told_by_map_key if isinstance(state, LruMapState) else _told
    for method in ("get", "contains") if isinstance(state, LruMapState) else ("get", "exists"):
        setattr(state, method, tell(getattr(state, method), state.descriptor.name, context, recording))


def _told(read: Callable[[], Any], name: str, context: KeyContext, recording: Recording) -> Callable[[], Any]:
    asked = recording.asked

    def told() -> Any:
        asked((name, context.key))
        return read()

    return told


def _told_by_map_key(
    read: Callable[[Any], Any], name: str, context: KeyContext, recording: Recording
) -> Callable[[Any], Any]:
    asked = recording.asked

    def told(map_key: Any) -> Any:
        asked((name, context.key, map_key))
        return read(map_key)

    return told
