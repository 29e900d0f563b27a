"""Keeps several caches within a budget of bytes, and gives each the size that brings the most hits.

Place on the data path: beside the caches. From time to time the budget is split again by the curves of all recorded
caches (`split`), and the caches are resized. A cache's curve does not depend on its size. So a small cache that would
profit from more room is found.

Caches shrink before others grow. Each cache keeps at least `LEAST_SHARE` of an equal share. A size changes only if the
change is at least `_WORTH_MOVING` of it, so that entries are not evicted without need.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from millpond.cache.api import Bounds
from millpond.cache.curves.advice import FEW_REQUESTS
from millpond.cache.curves.recording import Recording
from millpond.cache.curves.registry import recordings, report_on
from millpond.cache.curves.report import CacheReport, bytes_text
from millpond.cache.curves.split import Share, best_split
from millpond.errors import OptionError
from millpond.options import size_bytes

LEAST_SHARE: Final = 0.05
"""The least that a cache gets, as a part of an equal share of the budget."""

_WORTH_MOVING = 0.1
EVERY_MS: Final = 60_000
"""The interval at which a started budget is split again, in milliseconds."""

_log = logging.getLogger("millpond.cache")


class Resized(msgspec.Struct, frozen=True):
    """One cache's change of size by a budget.

    Attributes:
        cache: its name.
        before, after: its size in bytes; an estimate if its limit is in entries.
        hit_rate_before, hit_rate_after: its hit rates at these sizes, by its curve.
    """

    cache: str
    before: int
    after: int
    hit_rate_before: float
    hit_rate_after: float

    def __str__(self) -> str:
        return (
            f"{self.cache}: {bytes_text(self.before)} to {bytes_text(self.after)}, "
            f"{100 * self.hit_rate_before:.1f} % to {100 * self.hit_rate_after:.1f} % expected to hit"
        )


class Budget:
    """A budget of bytes for several recorded caches.

    Args:
        budget: bytes, as a number or as "2GB".
        caches: returns the recordings of the caches that share it; by default all of the process.

    Raises:
        OptionError: the budget is not a size in bytes.

    Attributes:
        done: what the latest split changed.

    >>> from millpond.cache import new_cache
    >>> from millpond.cache.curves.registry import record, recordings_of
    >>> small = record(new_cache("small", max_bytes=1_000, weigher=lambda key, value: 10))
    >>> Budget("4kb", lambda: recordings_of([small])).apply()
    []
    """

    def __init__(self, budget: int | str, caches: Callable[[], Mapping[str, Recording]] = recordings) -> None:
        try:
            self.bytes = size_bytes(1)(budget)
        except ValueError as error:
            raise OptionError(f"budget: expected {error}, got {budget!r}") from error
        self._caches = caches
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.done: list[Resized] = []

    def apply(self) -> list[Resized]:
        """Split the budget by the curves recorded so far and resize the caches. Return the changes.

        Nothing changes until one cache has `FEW_REQUESTS` requests. A cache that was idle meanwhile gets the least
        share. A cache with a limit in entries that has not weighed any keeps its size.
        """
        found = {name: (one, report) for name, one in self._caches().items() if (report := report_on(name, one))}
        sized = {name: pair for name, pair in found.items() if pair[1].max_bytes is not None or _in_bytes(pair[1])}
        if not any(report.requests >= FEW_REQUESTS for _, report in sized.values()):
            return []
        least = LEAST_SHARE * self.bytes / len(sized)
        shares = {name: Share(report.curve, report.requests, least) for name, (_, report) in sized.items()}
        wanted = best_split(shares, self.bytes)
        moves = [
            (wanted[name] - _present_bytes(report), name)
            for name, (_, report) in sized.items()
            if abs(wanted[name] - _present_bytes(report)) >= _WORTH_MOVING * _present_bytes(report)
        ]
        self.done = [_resize(*sized[name], wanted[name]) for _, name in sorted(moves)]
        for resized in self.done:
            _log.info("budget of %s: %s", bytes_text(self.bytes), resized)
        for one, _ in sized.values():
            one.age()
            one.fit_miniatures()
        return self.done

    def start(self, every_ms: int = EVERY_MS) -> None:
        """Start a thread that applies the budget every `every_ms` until `close`. Call it again in a forked process."""
        if self._thread is None or not self._thread.is_alive():
            self._stopped = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(every_ms / 1_000,), name="millpond-budget", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop the thread. The caches keep their sizes. May be called twice."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self, seconds: float) -> None:
        while not self._stopped.wait(seconds):
            try:
                self.apply()
            except Exception:  # noqa: BLE001 - logged; the thread continues
                _log.exception("the caches could not be resized; they keep their sizes")


def _in_bytes(report: CacheReport) -> bool:
    """Return whether the curve has sizes in bytes."""
    return bool(report.curve.points) and report.curve.points[-1].bytes > 0


def _present_bytes(report: CacheReport) -> int:
    if report.max_bytes is not None:
        return report.max_bytes
    curve = report.curve
    return int(curve.bytes_of(report.present))


def _resize(recording: Recording, report: CacheReport, size: float) -> Resized:
    cache, before = recording.cache, _present_bytes(report)
    if cache is not None:
        if report.max_bytes is None:
            cache.resize(Bounds(max_entries=max(1, int(report.curve.entries_in(size)))))
        else:
            cache.resize(Bounds(report.max_entries, int(size)))
    curve = report.curve
    return Resized(report.name, before, int(size), curve.at_bytes(before), curve.at_bytes(size))
