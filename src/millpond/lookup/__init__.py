"""Lookup functions, partial and full caching, reload triggers, connectors."""

from millpond.lookup.caches.async_partial import AsyncPartialCachingLookup
from millpond.lookup.caches.blocking import BlockingLookup
from millpond.lookup.caches.cache import DefaultLookupCache, LookupCache
from millpond.lookup.caches.cached import CachedFunction, cached
from millpond.lookup.caches.full import FullCachingLookup
from millpond.lookup.caches.full_cache import LookupFullCache
from millpond.lookup.caches.held_table import HeldTable
from millpond.lookup.caches.mapped_table import MappedTable
from millpond.lookup.caches.partial import PartialCachingLookup
from millpond.lookup.functions.answers import Answers
from millpond.lookup.functions.async_function import AsyncLookupFunction, ThreadedLookup
from millpond.lookup.functions.columns import AnswersInColumns, FoundColumns
from millpond.lookup.functions.function import Key, LookupFunction, Row, Rows
from millpond.lookup.functions.retry import Retries
from millpond.lookup.hit_history import HitRate
from millpond.lookup.metrics import CacheMetricGroup, LookupStats
from millpond.lookup.options import LookupOptions
from millpond.lookup.providers import (
    AsyncLookupFunctionProvider,
    FullCachingLookupProvider,
    LookupFunctionProvider,
    PartialCachingAsyncLookupProvider,
    PartialCachingLookupProvider,
)
from millpond.lookup.push_down.conditions import Condition
from millpond.lookup.push_down.narrowed import SupportsPushDown
from millpond.lookup.reload.scan import LookupScan
from millpond.lookup.reload.timed import TimedCacheReloadTrigger
from millpond.lookup.reload.trigger import CacheReloadTrigger, PeriodicCacheReloadTrigger, ReloadContext
from millpond.lookup.sources.arrow import TableScan
from millpond.lookup.sources.delta import DeltaScan
from millpond.lookup.sources.files import FileScan
from millpond.lookup.sources.http import HttpLookup, HttpScan
from millpond.lookup.sources.iceberg import IcebergScan
from millpond.lookup.sources.kv import KvLookup, write_kv_table
from millpond.lookup.sources.python import AsyncPythonLookup, PythonLookup
from millpond.lookup.sources.redis import RedisLookup
from millpond.lookup.sources.sql import SqlLookup
from millpond.lookup.table import LookupTable

__all__ = [
    "Answers",
    "AnswersInColumns",
    "AsyncLookupFunction",
    "AsyncLookupFunctionProvider",
    "AsyncPartialCachingLookup",
    "AsyncPythonLookup",
    "BlockingLookup",
    "CacheMetricGroup",
    "CacheReloadTrigger",
    "CachedFunction",
    "Condition",
    "DefaultLookupCache",
    "DeltaScan",
    "FileScan",
    "FoundColumns",
    "FullCachingLookup",
    "FullCachingLookupProvider",
    "HeldTable",
    "HitRate",
    "HttpLookup",
    "HttpScan",
    "IcebergScan",
    "Key",
    "KvLookup",
    "LookupCache",
    "LookupFullCache",
    "LookupFunction",
    "LookupFunctionProvider",
    "LookupOptions",
    "LookupScan",
    "LookupStats",
    "LookupTable",
    "MappedTable",
    "PartialCachingAsyncLookupProvider",
    "PartialCachingLookup",
    "PartialCachingLookupProvider",
    "PeriodicCacheReloadTrigger",
    "PythonLookup",
    "RedisLookup",
    "ReloadContext",
    "Retries",
    "Row",
    "Rows",
    "SqlLookup",
    "SupportsPushDown",
    "TableScan",
    "ThreadedLookup",
    "TimedCacheReloadTrigger",
    "cached",
    "write_kv_table",
]
