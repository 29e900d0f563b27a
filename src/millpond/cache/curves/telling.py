"""Sends hit-rate curves to another process, and merges the curves of caches that share a load.

Place on the data path: between a recording in a Spark worker or state host and the driver, whose web page shows it. A
report has some kilobytes and takes some milliseconds to make. So it is made at most once in `EVERY_MS`, and sent again
until the next one is made. It is encoded as MessagePack at the same time, because pickling it would cost a millisecond
of each batch.
"""

import threading
from collections.abc import Iterable
from typing import Final

import msgspec

from millpond.cache.api import Clock, Policy, monotonic_ms
from millpond.cache.curves.curve import HitRateCurve
from millpond.cache.curves.recording import Recording
from millpond.cache.curves.registry import report_on
from millpond.cache.curves.report import CacheReport

EVERY_MS: Final = 5_000
"""The greatest age of a report, in milliseconds."""


EncodedReport = bytes
"""A `CacheReport` as MessagePack; `heard` decodes it."""


class Telling:
    """Gives the newest report of a recording, to any number of threads.

    Args:
        recording: the recording of the cache; None if the cache is not recorded.
        clock: monotonic milliseconds.

    >>> Telling(None).now() is None
    True
    """

    def __init__(self, recording: Recording | None, clock: Clock = monotonic_ms) -> None:
        self._recording = recording
        self._clock = clock
        self._lock = threading.Lock()
        self._made_ms: int | None = None
        self._told: EncodedReport | None = None

    def now(self) -> EncodedReport | None:
        """Return a report at most `EVERY_MS` old; None if the cache is not recorded, or gone. `heard` decodes it."""
        if self._recording is None:
            return None
        # A thread waits while another makes the first report: without one, its cache would have no curve on the page.
        with self._lock:
            now_ms = self._clock()
            if self._made_ms is None or now_ms - self._made_ms >= EVERY_MS:
                self._made_ms = now_ms
                report = report_on(self._recording.name, self._recording)
                self._told = None if report is None else msgspec.msgpack.encode(report)
            return self._told


def heard(told: Iterable[EncodedReport | None]) -> list[CacheReport]:
    """Decode the reports, leaving out those that are None."""
    return [msgspec.msgpack.decode(each, type=CacheReport) for each in told if each is not None]


def together(name: str, reports: Iterable[CacheReport]) -> CacheReport | None:
    """Merge the reports of caches that each hold a part of the keys; None if no report has a curve.

    Sizes are those of *each* cache, like the option that sets them. Hit rates are those of all requests together, and
    the entries and bytes held are added up.

    >>> from millpond.cache.curves.curve import Point
    >>> curve = HitRateCurve((Point(100, 0, 0.5), Point(200, 0, 0.7)))
    >>> one = CacheReport("a", "lru", 100, None, 100, 90, None, 3_000, 0.5, {"lru": curve})
    >>> flat = HitRateCurve((Point(100, 0, 0.1), Point(200, 0, 0.1)))
    >>> both = together("planes", [one, msgspec.structs.replace(one, requests=1_000, curves={"lru": flat})])
    >>> both.name, both.requests, both.entries, round(both.present_rate(), 3)
    ('planes', 4000, 180, 0.4)
    """
    asked = [report for report in reports if report.curve.points]
    if not asked:
        return None
    largest = max(asked, key=lambda report: report.requests)
    total = sum(report.requests for report in asked) or 1
    known = [report.bytes for report in asked if report.bytes is not None]
    return msgspec.structs.replace(
        largest,
        name=name,
        entries=sum(report.entries for report in asked),
        bytes=sum(known) if known else None,
        requests=total,
        hit_rate=sum(report.hit_rate * report.requests for report in asked) / total,
        curves={policy: _mean(policy, curve, asked, total) for policy, curve in largest.curves.items()},
    )


def _mean(policy: Policy, sizes: HitRateCurve, reports: list[CacheReport], total: int) -> HitRateCurve:
    """Return the curve of all requests, at the sizes of one curve."""
    weighed = [(report.curves[policy], report.requests / total) for report in reports if policy in report.curves]
    in_bytes = reports[0].max_bytes is not None
    return HitRateCurve(
        tuple(
            point._replace(
                hit_rate=sum(
                    part * (curve.at_bytes(point.bytes) if in_bytes else curve.at_entries(point.entries))
                    for curve, part in weighed
                )
            )
            for point in sizes.points
        )
    )
