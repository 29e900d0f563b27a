"""A lookup of batches in columns, called as one of rows is: so the tests of the one are those of the other."""

import pyarrow as pa

from millpond.lookup import Answers, CacheMetricGroup, Retries
from millpond.lookup.caches.partial_columns import ColumnCachingLookup
from millpond.lookup.column_cache.cache import ColumnCache, ColumnCacheLimits

from . import partial_source
from .partial_source import Longest


class InColumns:
    """A `ColumnCachingLookup` for keys and rows in Python."""

    def __init__(self, lookup):
        self.lookup_in_columns = lookup
        self.stats, self.hit_rates = lookup.stats, lookup.hit_rates
        self.invalidate, self.close = lookup.invalidate, lookup.close
        self._in_flight = lookup._in_flight

    def lookup(self, key):
        return self.lookup_many([key])[key]

    def lookup_many(self, keys):
        answers = self._answers(keys, isolate=False)
        return {key: answers.rows[key] for key in keys}

    def lookup_each(self, keys):
        return self._answers(keys, isolate=True)

    def _answers(self, keys, *, isolate):
        distinct = list(dict.fromkeys(keys))
        schema = self.lookup_in_columns.key_schema
        columns = [pa.array([key[place] for key in distinct], field.type) for place, field in enumerate(schema)]
        matched = self.lookup_in_columns.match(columns, isolate=isolate)
        rows = matched.rows.rows.to_pylist()
        answers = Answers(failures={distinct[number]: error for number, error in matched.failures.items()})
        for number, key in enumerate(distinct):
            if key not in answers.failures:
                first, count = int(matched.rows.starts[number]), int(matched.rows.counts[number])
                answers.rows[key] = [tuple(row.values()) for row in rows[first : first + count]]
        return answers


def open_in_columns(source, cache, *, max_retries=0, waits=None, recorder=None):
    """As `open_lookup`, with a cache of the same limits."""
    settings = None if cache is None else dict(cache.__getstate__())
    columns = None
    if settings is not None:
        clock = settings.pop("clock")
        del settings["hit_rate_curve"]  # only caches of rows record one
        columns = ColumnCache(ColumnCacheLimits(**settings), clock)
    metrics = CacheMetricGroup("planes", recorder) if recorder else CacheMetricGroup("planes")
    retries = Retries(max_retries, sleep=(waits if waits is not None else []).append, randomness=Longest())
    lookup = ColumnCachingLookup(source, columns, metrics, retries)
    lookup.open()
    return InColumns(lookup)


EVERY_FORM = {"rows": partial_source.open_lookup, "columns": open_in_columns}
