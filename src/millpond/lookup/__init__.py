"""Lookup functions, partial and full caching, reload triggers, connectors."""

from millpond.lookup.cache import DefaultLookupCache, LookupCache
from millpond.lookup.full import FullCachingLookup, FullCachingLookupProvider
from millpond.lookup.function import Key, LookupFunction, PythonLookup, Row, Rows
from millpond.lookup.keyed_table import KeyedTable
from millpond.lookup.metrics import CacheMetricGroup, LookupStats
from millpond.lookup.options import LookupOptions
from millpond.lookup.partial import PartialCachingLookup, PartialCachingLookupProvider
from millpond.lookup.retry import Retries
from millpond.lookup.scan import LookupScan, ParquetScan, TableScan
from millpond.lookup.sql import SqlLookup
from millpond.lookup.table import LookupTable
from millpond.lookup.trigger import CacheReloadTrigger, PeriodicCacheReloadTrigger, ReloadContext

__all__ = [
    "CacheMetricGroup",
    "CacheReloadTrigger",
    "DefaultLookupCache",
    "FullCachingLookup",
    "FullCachingLookupProvider",
    "Key",
    "KeyedTable",
    "LookupCache",
    "LookupFunction",
    "LookupOptions",
    "LookupScan",
    "LookupStats",
    "LookupTable",
    "ParquetScan",
    "PartialCachingLookup",
    "PartialCachingLookupProvider",
    "PeriodicCacheReloadTrigger",
    "PythonLookup",
    "ReloadContext",
    "Retries",
    "Row",
    "Rows",
    "SqlLookup",
    "TableScan",
]
