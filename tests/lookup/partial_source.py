"""A source whose answers and failures the tests of partial caching choose, and a lookup over it."""

import random

import pyarrow as pa

from millpond.lookup import (
    CacheMetricGroup,
    LookupFunction,
    PartialCachingLookup,
    Retries,
)

KEYS = pa.schema([("n", pa.int64())])
ROWS = pa.schema([("text", pa.string())])
PATIENCE_S = 20


class Source(LookupFunction):
    """Even keys have as many rows as half their value modulo 3 says; failures are queued."""

    key_schema, row_schema = KEYS, ROWS

    def __init__(self):
        self.batches = []
        self.failures = []

    def lookup(self, keys):
        (n,) = keys
        return [(f"{n}.{row}",) for row in range(n // 2 % 3)] if n % 2 == 0 else []

    def lookup_many(self, keys):
        self.batches.append(list(keys))
        if self.failures:
            raise self.failures.pop(0)
        return super().lookup_many(keys)


class Longest(random.Random):
    def uniform(self, a, b):
        return b


def open_lookup(source, cache, *, max_retries=0, waits=None, recorder=None):
    metrics = CacheMetricGroup("planes", recorder) if recorder else CacheMetricGroup("planes")
    retries = Retries(max_retries, sleep=(waits if waits is not None else []).append, randomness=Longest())
    lookup = PartialCachingLookup(source, cache, metrics, retries)
    lookup.open()
    return lookup
