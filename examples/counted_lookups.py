"""Counts the lookups of a table, with a custom recorder for `millpond.metrics`.

A recorder has two methods. It passes metrics on to Prometheus, to a log, or, as here, to a dictionary.

    python examples/counted_lookups.py
"""

from collections import Counter

import pyarrow as pa

from millpond.lookup import LookupTable, PythonLookup
from millpond.metrics import Recorder
from millpond.metrics.recorder import Result

MODELS = {"N101": "A320", "N102": "B738"}


class Counters(Recorder):
    """Adds up counters by name and result, and ignores gauges."""

    def __init__(self) -> None:
        self.totals: Counter[tuple[str, str]] = Counter()

    def count(self, metric: str, amount: float = 1, *, name: str = "", result: Result = "ok") -> None:
        """Add to a counter."""
        self.totals[metric, result] += int(amount)

    def gauge(self, metric: str, value: float, *, name: str = "") -> None:
        """Ignore a gauge."""


def main() -> None:
    """Look four planes up, and print what was counted."""
    counters = Counters()
    planes = LookupTable(
        "planes",
        PythonLookup(
            lambda tailnum: [(MODELS[tailnum],)] if tailnum in MODELS else [],
            pa.schema([("tailnum", pa.string())]),
            pa.schema([("model", pa.string())]),
        ),
        {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 100},
        recorder=counters,
    )
    with planes.open() as lookup:
        for tailnum in ("N101", "N102", "N101", "N999"):
            print(tailnum, lookup.lookup((tailnum,)))
    for (metric, result), total in sorted(counters.totals.items()):
        print(metric, result, total)


if __name__ == "__main__":
    main()
