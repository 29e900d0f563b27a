"""Curves that leave their process: made anew now and then, and put together where several caches share a load.

Place on the data path: between a recording in a Spark worker or state host and the driver, whose page shows it. A
report is plain data of some kilobytes and costs some milliseconds, so it is made at most once in `EVERY_MS`, and told
until the next one is there. It travels as MessagePack, which is made as often: to pickle it would cost a millisecond of
each batch.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from millpond.cache.api import Clock, Policy, monotonic_ms
from millpond.cache.curves.curve import HitRateCurve
from millpond.cache.curves.recording import Recording
from millpond.cache.curves.registry import report_on
from millpond.cache.curves.report import CacheReport

EVERY_MS: Final = 5_000
"""How old a report may be."""


EncodedReport = bytes
"""A `CacheReport` on its way, for `heard`."""


class Telling:
    """The newest report of a recording; None of a cache that is not recorded.

    Args:
        recording: of the cache.
        clock: monotonic milliseconds.

    >>> Telling(None).now() is None
    True
    """

    def __init__(self, recording: Recording | None, clock: Clock = monotonic_ms) -> None:
        self._recording = recording
        self._clock = clock
        self._made_ms: int | None = None
        self._told: EncodedReport | None = None

    def now(self) -> EncodedReport | None:
        """A report that is at most `EVERY_MS` old, for `heard`."""
        if self._recording is None:
            return None
        now_ms = self._clock()
        if self._made_ms is None or now_ms - self._made_ms >= EVERY_MS:
            self._made_ms = now_ms
            report = report_on(self._recording.name, self._recording)
            self._told = None if report is None else msgspec.msgpack.encode(report)
        return self._told


def heard(told: Iterable[EncodedReport | None]) -> list[CacheReport]:
    """The reports that were told, where there are any."""
    return [msgspec.msgpack.decode(each, type=CacheReport) for each in told if each is not None]


def together(name: str, reports: Iterable[CacheReport]) -> CacheReport | None:
    """Several caches of one kind, of which each has a part of the keys, as one; None if there are none.

    Sizes are those of *each* cache, as the option is that sets them. A hit rate is that of all requests, and what the
    caches hold is added up.

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
    """The curve of all requests at the sizes of one."""
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
