"""Hit-rate curves: the hit rate that a running cache would have at every size.

    record(cache) ──> recording ──> report ──> advice, split ──> budget
                      (sampled)     (JSON)

`record` starts recording for one cache, `curves_view` shows all recordings of this process, and `Budget` resizes caches
by their curves.
"""

from millpond.cache.curves.advice import Advice, Finding, advice_on, smallest_size
from millpond.cache.curves.budget import Budget, Resized
from millpond.cache.curves.curve import HitRateCurve, Point
from millpond.cache.curves.registry import curves_view, record, recordings_of, reports
from millpond.cache.curves.report import CacheReport
from millpond.cache.curves.split import Share, best_split

__all__ = [
    "Advice",
    "Budget",
    "CacheReport",
    "Finding",
    "HitRateCurve",
    "Point",
    "Resized",
    "Share",
    "advice_on",
    "best_split",
    "curves_view",
    "record",
    "recordings_of",
    "reports",
    "smallest_size",
]
