"""The JSON documents of the page, one for each view.

Place on the data path: between the process that has the numbers (the service, a Spark driver) and `static/views/`. An
unknown number is null, and the page shows a dash. Times are in milliseconds UTC, and sizes in bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec


class Overview(msgspec.Struct, frozen=True):
    """The document that the page polls: every metric, summed up.

    Attributes:
        process: the name of this process, such as ``millpond serve``.
        metrics: values by the name of the metric, and then by its kept labels, as in ``"result=hit"``.
        notices: sentences about problems to look at.
    """

    process: str
    metrics: Mapping[str, Mapping[str, float]]
    notices: Sequence[str] = ()


class HitRateCurve(msgspec.Struct, frozen=True):
    """The hit rate of a cache at every size.

    Attributes:
        unit: the unit of the sizes.
        sizes: the sizes, ascending.
        lines: by policy, such as ``lru``: the hit rate at each of the sizes, 0 to 1.
        present: the present size of the cache.
    """

    unit: Literal["entries", "bytes"]
    sizes: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    present: float | None = None


class CacheView(msgspec.Struct, frozen=True, kw_only=True):
    """One cache: its counters since its process began, its present size, and its limits.

    Attributes:
        evictions: entries removed to make room.
        expirations: entries removed for their age.
        curve: the hit-rate curve; None if none is recorded.
        advice: sentences made from the curve; None if none is recorded.
    """

    name: str
    hits: float
    misses: float
    evictions: float = 0
    expirations: float = 0
    entries: float | None = None
    bytes: float | None = None
    max_entries: int | None = None
    max_bytes: int | None = None
    curve: HitRateCurve | None = None
    advice: Sequence[str] | None = None


class Caches(msgspec.Struct, frozen=True):
    """The caches with the most misses, and the number of all caches."""

    caches: Sequence[CacheView]
    total: int


class TargetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A GroupBy or Join in the list. A Join has the greatest of its parts' ages."""

    name: str
    kind: Literal["group_by", "join"]
    keys: Sequence[str]
    features: int
    problem: str | None = None
    is_late: bool = False
    batch_end_age_ms: int | None = None
    landing_age_ms: int | None = None
    closing_age_ms: int | None = None


class PartFreshness(msgspec.Struct, frozen=True, kw_only=True):
    """The freshness of one GroupBy's data."""

    group_by: str
    batch_end_ms: int | None = None
    batch_landing_ms: int | None = None
    batch_end_age_ms: int | None = None
    landing_age_ms: int | None = None
    closing_age_ms: int | None = None
    is_late: bool = False


class TargetView(msgspec.Struct, frozen=True, kw_only=True):
    """All details of a GroupBy or Join.

    Attributes:
        definition: the definition as pairs of a term and a text.
        feature_types: the name and type of each feature.
        key_types, context_types: the types, by name, of the values that a request must give.
        plans: the name and explained plan of each GroupBy.
        sizes: for each GroupBy its name, and the bytes of a tile of one event, of a batch row of one event, and of a
            full batch row.
    """

    name: str
    kind: Literal["group_by", "join"]
    problem: str | None
    definition: Sequence[tuple[str, str]]
    feature_types: Sequence[tuple[str, str]]
    key_types: Mapping[str, str]
    context_types: Mapping[str, str]
    plans: Sequence[tuple[str, str]]
    sizes: Sequence[tuple[str, int, int, int]]
    freshness: Sequence[PartFreshness]


class Features(msgspec.Struct, frozen=True):
    """Some GroupBys and Joins with the number of all, or the requested one in `target`."""

    targets: Sequence[TargetRow] = ()
    total: int = 0
    target: TargetView | None = None


class ShardView(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of a keyed operator: sums since its query was planned, and the latest levels. Times are in seconds."""

    shard: int
    rows: int
    late_rows: int
    dead_letters: int
    restores: int
    shuffle_seconds: float
    run_seconds: float
    flush_seconds: float
    commit_seconds: float
    store_seconds: float
    state_rows: int
    state_bytes: int
    heap_bytes: int | None = None
    disk_bytes: int | None = None


class HotGroup(msgspec.Struct, frozen=True):
    """A key group with many rows in the latest batch of its shard."""

    key_group: int
    rows: int
    shard: int


class GroupTemperature(msgspec.Struct, frozen=True):
    """A key group of a heap that spills: its place, its bytes, and its requests per second."""

    key_group: int
    place: str
    bytes: int
    rate: float


class OperatorView(msgspec.Struct, frozen=True, kw_only=True):
    """A keyed operator and its shards."""

    name: str
    batches: int
    rows: int
    late_rows: int
    dead_letters: int
    restores: int
    spills: int
    loads: int
    cache_hits: int
    cache_misses: int
    shuffle_seconds: float
    run_seconds: float
    flush_seconds: float
    commit_seconds: float
    store_seconds: float
    state_rows: int
    state_bytes: int
    shards: Sequence[ShardView] = ()
    hot_groups: Sequence[HotGroup] = ()
    groups: Sequence[GroupTemperature] = ()


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch as Spark reports it.

    Attributes:
        time_ms: when it began, in ms since 1970 UTC.
        ms: its duration.
        phases_ms: the duration of each of Spark's steps.
        watermark_ms: the watermark; None without event time.
        lag_ms: how far the watermark is behind the newest event.
    """

    batch: int
    time_ms: int
    ms: float
    rows: int
    rows_per_second: float | None
    phases_ms: Mapping[str, float]
    watermark_ms: int | None = None
    lag_ms: int | None = None


class QueryView(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming query with its keyed operators and its latest batches."""

    id: str
    name: str
    is_active: bool
    error: str | None = None
    batches: Sequence[BatchView] = ()
    operators: Sequence[OperatorView] = ()


class Queries(msgspec.Struct, frozen=True):
    """All known queries."""

    queries: Sequence[QueryView] = ()


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    """A state at a location. Rows and bytes are given if they are known without reading the state."""

    name: str
    declared: str
    operator: int | None = None
    operator_name: str | None = None
    rows: int | None = None
    bytes: int | None = None


class LocationView(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint or savepoint; `problem` says why it cannot be read."""

    name: str
    kind: str = "–"
    versions: str | None = None
    states: Sequence[StateRow] = ()
    rows: int | None = None
    bytes: int | None = None
    problem: str | None = None


class StoredStates(msgspec.Struct, frozen=True):
    """All locations that the page may read."""

    locations: Sequence[LocationView] = ()


class StoredRows(msgspec.Struct, frozen=True):
    """Rows of a state, or its changes."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    more: bool = False
