"""Advice on one cache: whether its size and its policy suit its requests.

Pure functions from a report to findings. A finding on a size or policy compares two points of the curves, and names
both.
"""

from typing import Literal

import msgspec

from millpond.cache.api import Policy
from millpond.cache.curves.curve import Point
from millpond.cache.curves.report import CacheReport

Verdict = Literal["few requests", "useless", "too small", "too large", "other policy", "right"]

FEW_REQUESTS = 1_000
_USELESS_RATE = 0.02
_LARGER = 8
"""The largest size considered, as a multiple of the present size."""

_WORTH_GROWING = 0.05
_WORTH_CHANGING = 0.03
_WORTH_KEEPING = 0.01


class Finding(msgspec.Struct, frozen=True):
    """One finding, as a word for programs and a sentence for people."""

    verdict: Verdict
    text: str


class Advice(msgspec.Struct, frozen=True):
    """The findings on one cache.

    Attributes:
        cache: its name.
        present_rate: its hit rate at the present size, by its curve.
        highest_rate: its hit rate with room for every key.
        findings: at least one, the most important first.
    """

    cache: str
    present_rate: float
    highest_rate: float
    findings: list[Finding]


def smallest_size(report: CacheReport, hit_rate: float) -> Point | None:
    """Return the smallest size of a cache that reaches a hit rate; None if no size does."""
    return report.curve.smallest(hit_rate)


def advice_on(report: CacheReport) -> Advice:
    """Return the findings on a cache."""
    curve, present = report.curve, report.present_rate()
    highest = curve.highest()
    return Advice(report.name, present, highest, _findings(report, present, highest))


def _findings(report: CacheReport, present: float, highest: float) -> list[Finding]:
    if report.requests < FEW_REQUESTS or not report.curve.points:
        needed = f", of {FEW_REQUESTS:,} that are needed" if report.requests < FEW_REQUESTS else ""
        return [Finding("few requests", f"Too few requests to tell: {report.requests:,}{needed}.")]
    if highest < _USELESS_RATE:
        text = (
            f"Hardly any key comes again: with room for all keys {_percent(highest)} would hit. Switch the cache off."
        )
        return [Finding("useless", text)]
    of_size = _too_small(report, present) or _too_large(report, present)
    findings = [finding for finding in (of_size, _other_policy(report, present)) if finding is not None]
    return findings or [
        Finding("right", f"The size suits: {_percent(present)} hit, at most {_percent(highest)} could.")
    ]


def _too_small(report: CacheReport, present: float) -> Finding | None:
    larger = report.scaled_rate(_LARGER)
    enough = report.curve.smallest(larger - _WORTH_KEEPING)
    if enough is None or larger - present < _WORTH_GROWING:
        return None
    size = report.size_text(enough.entries, enough.bytes)
    text = f"Too small: with {size} {_percent(enough.hit_rate)} would hit instead of {_percent(present)}."
    return Finding("too small", text)


def _too_large(report: CacheReport, present: float) -> Finding | None:
    enough = report.curve.smallest(present - _WORTH_KEEPING)
    if enough is None or report.scaled_rate(0.5) < present - _WORTH_KEEPING:
        return None
    text = (
        f"Larger than needed: {report.size_text(enough.entries, enough.bytes)} would give {_percent(enough.hit_rate)}."
    )
    return Finding("too large", text)


def _other_policy(report: CacheReport, present: float) -> Finding | None:
    other: Policy = "lru" if report.policy == "w-tinylfu" else "w-tinylfu"
    if other not in report.curves or report.policy not in report.curves:
        return None
    rate = report.present_rate(other)
    if rate - present < _WORTH_CHANGING:
        return None
    text = f"The policy {other!r} would hit {_percent(rate)} at this size, {report.policy!r} hits {_percent(present)}."
    return Finding("other policy", text)


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"
