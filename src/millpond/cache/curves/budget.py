"""Keeps several caches within a budget of bytes, and moves room to where it brings most hits.

Place on the data path: beside the caches. From time to time the curves of all recorded caches are looked at, the budget
is split anew (`split`), and the caches are resized. The curve of a cache does not depend on its size, so a cache that
got little is seen when it would profit from more.

A cache that shrinks does so before another grows. Each cache keeps `LEAST_SHARE` of an equal share, and a size changes
only by `_WORTH_MOVING` of it or more, so that caches are not emptied for nothing.
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
"""What a cache keeps at least, of an equal share of the budget."""

_WORTH_MOVING = 0.1
EVERY_MS: Final = 60_000
"""How often a started budget is split anew."""

_log = logging.getLogger("millpond.cache")


class Resized(msgspec.Struct, frozen=True):
    """What a budget did to one cache.

    Attributes:
        cache: its name.
        before, after: its size in bytes; about, if it is bounded in entries.
        hit_rate_before, hit_rate_after: by its curve.
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
    """A budget of bytes over recorded caches.

    Args:
        budget: bytes, as a number or as "2GB".
        caches: gives the recordings of the caches that share it; all of the process by default.

    Raises:
        OptionError: the budget is no size.

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
        """Split the budget by what was recorded so far and resize the caches; what was changed.

        Nothing is done before one of them was asked often enough for a curve. A cache that lay idle meanwhile keeps the
        least. One that is bounded in entries, and weighed none yet, keeps its size.
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
        """Apply it from time to time, on a thread, until it is closed; in a forked process it is started again."""
        if self._thread is None or not self._thread.is_alive():
            self._stopped = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(every_ms / 1_000,), name="millpond-budget", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Leave the sizes as they are. May be called twice."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self, seconds: float) -> None:
        while not self._stopped.wait(seconds):
            try:
                self.apply()
            except Exception:  # noqa: BLE001 - told in the log; the thread goes on
                _log.exception("the caches could not be resized; they keep their sizes")


def _in_bytes(report: CacheReport) -> bool:
    """Whether the curve tells sizes in bytes."""
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
