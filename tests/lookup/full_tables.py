"""Fully cached tables for tests: their sources, and a trigger that the test pulls."""

import pyarrow as pa

from millpond.lookup import (
    CacheMetricGroup,
    FullCachingLookup,
    Retries,
    TableScan,
)


def open_full(read, trigger=None, clock=lambda: 0, run=lambda action: action(), **choices):
    scan = TableScan(read, ["code"])
    retries = Retries(0)
    lookup = FullCachingLookup(
        scan, trigger, CacheMetricGroup("t"), retries, clock, wall_clock=clock, run=run, **choices
    )
    lookup.open()
    return lookup


class Source:
    """What a scan reads next: tables, or errors to raise. The first is read twice: when the scan is declared."""

    def __init__(self, *answers):
        self.answers = [answers[0], *answers]

    def __call__(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Manual:
    """A trigger of a user's own: reloads when the test says so."""

    def __init__(self):
        self.context = None
        self.closed = 0

    def open(self, context):
        self.context = context

    def close(self):
        self.closed += 1


def gates(*numbers):
    return pa.table({"code": pa.array(["JFK"] * len(numbers), pa.string()), "gate": pa.array(numbers, pa.int64())})
