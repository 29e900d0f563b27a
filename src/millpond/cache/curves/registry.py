"""The recorded caches of this process, and their reports.

A recording is listed as long as its cache is in use. The view is plain data: the server sends it, and
`millpond caches advise` and the web page read it.
"""

import threading
import weakref
from collections.abc import Iterable
from typing import Any

import msgspec

from millpond.cache.api import Cache, K, Policy, V
from millpond.cache.curves.advice import advice_on
from millpond.cache.curves.recording import Recorded, Recording
from millpond.cache.curves.report import CacheReport
from millpond.cache.curves.watched import WatchedCache
from millpond.cache.shared import SharedCache

_lock = threading.Lock()
_recordings: "weakref.WeakSet[Recording]" = weakref.WeakSet()


def record(cache: Cache[K, V], *, fed_apart: bool = False) -> Cache[K, V]:
    """Start recording the hit-rate curves of a cache. Return the cache to use from here on.

    For a cache of several threads (`shared=True`) this is the same cache, so requests of all its users are recorded.
    Otherwise it is a wrapper, and only requests through the wrapper are recorded.

    Args:
        cache: the cache to record.
        fed_apart: whether another component decides which keys are put, see `Recording`.

    >>> from millpond.cache import new_cache
    >>> planes = record(new_cache("planes", max_entries=1_000))
    >>> planes.put("N101", "A320"); planes.get("N101")
    'A320'
    >>> [report.name for report in reports() if report.name == "planes"]
    ['planes']
    """
    recording = Recording(cache, fed_apart=fed_apart)
    register(recording)
    if isinstance(cache, SharedCache):
        cache.lay_around(lambda inner: WatchedCache(inner, recording))
        return cache
    return WatchedCache(cache, recording)


def register(recording: Recording) -> None:
    """List a recording for as long as something refers to it."""
    with _lock:
        _recordings.add(recording)


def recordings() -> dict[str, Recording]:
    """Return the recordings of caches in use, by name. The second cache of the same name is `name (2)`."""
    with _lock:
        found = sorted((one for one in _recordings if one.cache is not None), key=lambda one: (one.name, one.number))
    named: dict[str, Recording] = {}
    for one in found:
        name, number = one.name, 1
        while name in named:
            number += 1
            name = f"{one.name} ({number})"
        named[name] = one
    return named


def recordings_of(caches: Iterable[Recorded]) -> dict[str, Recording]:
    """Return the recordings of some caches, by name."""
    wanted = {id(cache) for cache in caches}
    return {name: one for name, one in recordings().items() if id(one.cache) in wanted}


def reports() -> list[CacheReport]:
    """Return a report of every recorded cache, sorted by name."""
    return [report for name, one in recordings().items() if (report := report_on(name, one)) is not None]


def curves_view() -> dict[str, Any]:
    """Return all reports of this process as plain data for JSON, with the advice on each cache.

    >>> sorted(curves_view())
    ['caches']
    """
    caches = [{**msgspec.to_builtins(report), "advice": msgspec.to_builtins(advice_on(report))} for report in reports()]
    return {"caches": caches}


def report_on(name: str, recording: Recording) -> CacheReport | None:
    """Return the report of a recorded cache; None if the cache is gone."""
    cache = recording.cache
    if cache is None:
        return None
    stats, bounds = cache.stats(), cache.bounds
    requests = stats.hits + stats.misses
    policies: tuple[Policy, ...] = ("lru", "w-tinylfu")
    return CacheReport(
        name,
        cache.policy,
        bounds.max_entries,
        bounds.max_bytes,
        recording.present_entries(cache),
        stats.entries,
        stats.bytes,
        int(recording.requests),
        stats.hits / requests if requests else 0.0,
        {policy: curve for policy in policies if (curve := recording.curve(policy)) is not None},
    )
