"""Joins a streaming or batch DataFrame with an external table: the part that runs on the driver.

Place on the data path: the first step. Mistakes are found here, at plan time: wrong key columns or types, colliding
names, a missing table. `worker` does the join in the Python workers, batch by batch. The invariant: an event leaves
with the rows that the source or the table has for its key at that time, or the query fails. A failure never makes an
event look unmatched.

Keys are compared as in Spark's join. Whole numbers of any width are compared by value. If Spark would cast the event's
side (a date or a string to a timestamp, a string to a number), Spark casts it before the lookup. If Spark would cast
the *table's* side, the table cannot be looked up that way, and the error says what to cast. Null keys match nothing.

A full table is loaded on the driver and written to one immutable file per load, which every worker maps (`files`). The
trade-off: a lookup join uses processing time, not event time, so a replayed batch sees the table of its replay.

Source: FLIP-221; Flink's processing-time lookup join.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millpond.errors import OptionError
from millpond.lookup import LookupTable
from millpond.spark.environment.versions import to_arrow_type
from millpond.spark.forms.dead_letters import letter_schema, with_dead_letters
from millpond.spark.lookup.counts import Counted, SummedCounts
from millpond.spark.lookup.files import Published, PublishedTable
from millpond.spark.lookup.invalidations import InvalidationsPlace, PublishedInvalidations
from millpond.spark.lookup.queries import ReadingQueries
from millpond.spark.lookup.retried import retried_join
from millpond.spark.lookup.rows import RowsWanted
from millpond.spark.lookup.shared.directory import Directory, directory_for
from millpond.spark.lookup.shared.near import divided
from millpond.spark.lookup.shared.rows import Sharing
from millpond.spark.lookup.skew import hosts_for
from millpond.spark.lookup.waiting import MissingRetries
from millpond.spark.lookup.worker import Hosted, JoinPlan, join_batches
from millpond.spark.spec.driver_counts import note_table
from millpond.spark.spec.operator import DEAD_LETTER


def lookup_join(
    df: DataFrame,
    table: LookupTable,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    how: Literal["left", "inner"] = "left",
    columns: Sequence[str] | None = None,
    prefix: str = "",
    share_cache: bool = False,
    hot_key_share: float = 0.1,
    on_error: Literal["fail", "dead-letter"] = "fail",
    host: Literal["process", "inline"] = "process",
    retry_missing: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Add the matching rows of an external table to the columns of `df`.

    Commonly used to enrich a stream from a database or from a table that changes slowly. An event with several
    matching rows comes out once for each. An event without one comes out with nulls (`left`) or not at all (`inner`).
    Watermarks pass through, except with `retry_missing`.

    - Delivery: that of `df`. A lookup that still fails after its retries fails the batch, or with `on_error` only its
      event.
    - Freshness: set by the cache options of the table. Each executor has one partial cache, in a state host that
      outlives the workers. A full cache is a file that all workers of a machine map.
    - Recovery: there is nothing to recover. A new host starts with an empty cache.

    Args:
        df: the events.
        table: the table to look up, and how it is cached. Its `stats()` has the sums over all workers. A worker looks
            up a key once for up to 100,000 events. Close the table when the query has ended.
        on: the key columns: names that event and table share, or a mapping from the event's column to the table's key
            column. All key columns of the table are needed.
        how: `"left"` or `"inner"`.
        columns: the table's row columns to add; by default all except keys that have the name of the event's column.
            Only these are read from the source and cached.
        prefix: put before the names of the added columns.
        share_cache: let all executors share their partial caches: each key has an owner among them, which loads and
            caches it, and which the others ask over the network. No event is shuffled. An eighth of an executor's
            cache holds keys of other owners. This pays with several executors if the source is slow or must be
            spared; asking for a key costs more processor time than a load from a fast database.
        hot_key_share: with `retry_missing`: if a key has more than this share of an Arrow batch's events, they are
            spread over all partitions, each of which looks up the key. Events without a key are spread too.
        on_error: what happens to an event for whose key the source fails. `"fail"` fails the batch. `"dead-letter"`
            puts the event and the reason into an additional column, `dead_letter` (see `split_dead_letters`). A source
            that does not answer fails the batch in both cases.
        host: where a partial cache is kept: `"process"`, in a state host beside the workers, or `"inline"`, in each
            worker, which Spark may end at any time. The latter is for platforms that forbid subprocesses.
        retry_missing: look up an event of a stream again if its row is missing, because rows may arrive later than
            events: `{"fixed-delay": "10 s", "max-attempts": 3}`, as in Flink's `LOOKUP` hint. Such an event waits in
            keyed state. It leaves once, with its row, or after the last retry without a match. Other events overtake
            it. A retry never uses a cached absence. The events are shuffled by key. No watermark passes through,
            because an event that waited may be older than the watermark.

    Raises:
        OptionError: a column does not exist, a name would occur twice, or key types do not match.

    For example, with a `LookupTable` of planes whose rows have a year and a model::

        joined = lookup_join(flights, planes, on="tailnum", prefix="plane_")
        joined.columns  # ['tailnum', 'dep_delay', 'plane_year', 'plane_model']
    """
    if how not in ("left", "inner"):
        raise OptionError(f"lookup_join with {table.name!r}, how: expected 'left' or 'inner', got {how!r}")
    if on_error not in ("fail", "dead-letter"):
        raise OptionError(
            f"lookup_join with {table.name!r}, on_error: expected 'fail' or 'dead-letter', got {on_error!r}"
        )
    if on_error == "dead-letter" and table.options.mode == "FULL":
        raise OptionError(
            f"lookup_join with {table.name!r}, on_error: has no effect on a table that is cached in full, which the "
            "source is not asked for by key; leave it out"
        )
    retries = None
    if retry_missing is not None:
        retries = MissingRetries.parse(f"lookup_join with {table.name!r}, retry_missing", retry_missing)
        _check_retries(df, table, share_cache=share_cache)
    if not 0 < hot_key_share <= 1:
        raise OptionError(
            f"lookup_join with {table.name!r}, hot_key_share: expected a share above 0, up to 1, got {hot_key_share!r}"
        )
    if host not in ("process", "inline"):
        raise OptionError(f"lookup_join with {table.name!r}, host: expected 'process' or 'inline', got {host!r}")
    if host == "inline" and retries is None and (share_cache or table.options.mode != "PARTIAL"):
        raise OptionError(
            f"lookup_join with {table.name!r}, host: 'inline' has an effect on a partial cache that is not shared; "
            "leave it out"
        )
    if share_cache and table.options.mode != "PARTIAL":
        raise OptionError(
            f"lookup_join with {table.name!r}, share_cache: has an effect on a partial cache, and the table has "
            f"lookup.cache = {table.options.mode}; leave it out"
        )
    pairs = _pairs(df, table, on)
    shared = {event_column for event_column, key_field in pairs if event_column == key_field.name}
    added = _added(df, table, columns, prefix, shared)
    planned = _planned(df, table, tuple(added), share_cache=share_cache)
    events = df.schema
    kept = len(df.columns)
    key_places: list[int] = []
    for place, (event_column, key_field) in enumerate(pairs):
        wanted_type = _cast(table.name, df.schema[event_column], key_field)
        if wanted_type is None:
            key_places.append(df.columns.index(event_column))
        else:
            key_places.append(len(df.columns))
            df = df.withColumn(f"__{planned.table_id}_{place}", df[event_column].cast(wanted_type))
    row_fields = tuple(pa.field(field.name, to_arrow_type(field.dataType)) for field in added.values())
    wanted = RowsWanted(planned.table_id, table.name, tuple(added), row_fields, on_error == "dead-letter")
    source: LookupTable | Published | Hosted = planned.published.place if planned.published else planned.table
    if retries is not None:
        if planned.published is None:
            source = planned.table.share(hosts_for(planned.table, df.sparkSession))
    elif table.options.mode == "PARTIAL" and host == "process":
        application = str(df.sparkSession.sparkContext.applicationId)
        source = Hosted(wanted, planned.table, application, planned.told, planned.sharing)
    joined, letter = StructType([*events.fields, *added.values()]), None
    if on_error == "dead-letter":
        keys = StructType([StructField(event_column, events[event_column].dataType) for event_column, _ in pairs])
        joined = with_dead_letters(joined, letter_schema(keys, events))
        letter = to_arrow_type(joined[DEAD_LETTER].dataType)
    plan = JoinPlan(source, tuple(key_places), kept, how == "inner", wanted, letter, planned.told)
    counted = planned.counted
    if retries is not None:
        hosts = hosts_for(planned.table, df.sparkSession)
        return retried_join(df, plan, joined, retries, counted, hot_key_share=hot_key_share, hosts=hosts, host=host)

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return join_batches(plan, batches, counted.add)

    # The plan shows the join under this name, and `ReadingQueries` finds the queries that have it.
    join.__name__ = planned.table_id
    return df.mapInArrow(join, joined)


def _check_retries(df: DataFrame, table: LookupTable, *, share_cache: bool) -> None:
    """Raise `OptionError` for input that cannot be retried, and for options without effect beside `retry_missing`."""
    where = f"lookup_join with {table.name!r}"
    if not df.isStreaming:
        raise OptionError(
            f"{where}, retry_missing: expected a stream, got a batch DataFrame, in which no event can wait; leave it "
            "out, or join the stream before its foreachBatch"
        )
    if share_cache:
        raise OptionError(
            f"{where}, share_cache: has no effect beside retry_missing, which shuffles by key; leave it out"
        )
    names = df.columns
    if len(set(names)) < len(names):
        raise OptionError(
            f"{where}, retry_missing: two columns of one name cannot be told apart in what waits, and the events have "
            f"{', '.join(names)}; rename one of them"
        )


@dataclass(frozen=True)
class _Planned:
    """The driver's objects for some columns of one table in one Spark application."""

    table_id: str
    table: LookupTable
    published: PublishedTable | None
    queries: ReadingQueries
    counted: Any
    invalidations: PublishedInvalidations | None
    directory: Directory | None
    sharing: Sharing | None

    @property
    def told(self) -> InvalidationsPlace | None:
        """The place where workers find invalidated keys."""
        return None if self.invalidations is None else self.invalidations.place


_PLANNED: dict[tuple[str, LookupTable, tuple[str, ...], bool], _Planned] = {}
"""Planned tables by application, table, columns, and whether executors share the cache.

So a join that is made for every micro-batch keeps its caches.
"""

_PLANNING: WeakKeyDictionary[LookupTable, threading.Lock] = WeakKeyDictionary()
_ALL_PLANNING = threading.Lock()


def _planned(df: DataFrame, table: LookupTable, columns: tuple[str, ...], *, share_cache: bool = False) -> _Planned:
    with _planning(table):
        key = (str(df.sparkSession.sparkContext.applicationId), table, columns, share_cache)
        if key not in _PLANNED:
            _PLANNED[key] = _newly_planned(df, table, columns, lambda: _release(key), share_cache=share_cache)
        _PLANNED[key].queries.add(df.sparkSession)
        return _PLANNED[key]


def _planning(table: LookupTable) -> threading.Lock:
    """Return the lock under which one thread at a time plans joins with a table, and loads it if it is a full one."""
    with _ALL_PLANNING:
        return _PLANNING.setdefault(table, threading.Lock())


def _newly_planned(
    df: DataFrame, table: LookupTable, columns: tuple[str, ...], release: Callable[[], None], *, share_cache: bool
) -> _Planned:
    used = None if set(columns) == set(table.row_schema.names) else list(columns)
    full = table.options.mode == "FULL"
    table_id = f"lookup_{uuid.uuid4().hex}"
    queries = ReadingQueries(table_id)
    published = PublishedTable(table, used, df.sparkSession, queries) if full else None
    counted = df.sparkSession.sparkContext.accumulator(Counted(), SummedCounts())
    note_table(table, lambda: cast("Counted", counted.value).reports())
    told = None
    if table.options.invalidation:
        told = PublishedInvalidations(table.name, table.key_schema, df.sparkSession)
    invalidate = None if told is None else told.add
    table.watch(lambda: cast("Counted", counted.value).total(), release, invalidate)
    narrow = table if full or used is None else table.select(used)
    directory = directory_for(df.sparkSession) if share_cache else None
    sharing = None
    if directory is not None:
        narrow, near = divided(narrow)
        sharing = Sharing(directory.address, near)
    return _Planned(table_id, narrow, published, queries, counted, told, directory, sharing)


def _release(key: tuple[str, LookupTable, tuple[str, ...], bool]) -> None:
    planned = _PLANNED.pop(key, None)
    for owned in () if planned is None else (planned.published, planned.invalidations, planned.directory):
        if owned is not None:
            owned.close()


def _pairs(
    df: DataFrame, table: LookupTable, on: str | Sequence[str] | Mapping[str, str]
) -> list[tuple[str, pa.Field]]:
    """Return for every key column of the table, in order, the event's column and the key's field."""
    names = {on: on} if isinstance(on, str) else dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    where = f"lookup_join with {table.name!r}, on"
    for event_column in names:
        if event_column not in df.columns:
            raise OptionError(f"{where}: the events have no column {event_column!r}; they have {', '.join(df.columns)}")
    by_key = {key: event_column for event_column, key in names.items()}
    keys = table.key_schema.names
    if sorted(names.values()) != sorted(keys):
        raise OptionError(
            f"{where}: expected each key column of the table once ({', '.join(keys)}), got "
            f"{', '.join(names.values())}; map them, as in on={{'event_column': 'key_column'}}"
        )
    return [(by_key[field.name], field) for field in table.key_schema]


def _added(
    df: DataFrame, table: LookupTable, columns: Sequence[str] | None, prefix: str, shared: set[str]
) -> dict[str, StructField]:
    """Return the added fields by the table's column. A key of the same name on both sides occurs once, as in Spark."""
    there = table.row_schema.names
    wanted = [name for name in there if prefix or name not in shared] if columns is None else list(columns)
    added: dict[str, StructField] = {}
    for name in wanted:
        if name not in there:
            raise OptionError(
                f"lookup_join with {table.name!r}, columns: the table has no column {name!r}; it has {', '.join(there)}"
            )
        spark_type = from_arrow_type(table.row_schema.field(name).type, prefer_timestamp_ntz=True)
        added[name] = StructField(prefix + name, spark_type, nullable=True)
    taken = [field.name for field in added.values() if field.name in df.columns]
    if taken or len(added) < len(wanted):
        raise OptionError(
            f"lookup_join with {table.name!r}, columns: {', '.join(taken or wanted)} would be there twice; "
            "give a prefix, or choose other columns"
        )
    return added


def _cast(name: str, event: StructField, key: pa.Field) -> DataType | None:
    """Return the type to which the event's column is cast before the lookup; None means no cast."""
    wanted = from_arrow_type(key.type, prefer_timestamp_ntz=True)
    given = event.dataType
    exact = (IntegralType, DecimalType)
    if isinstance(given, exact) and isinstance(wanted, exact):
        return None
    for same in (StringType, BooleanType, BinaryType, DateType, TimestampType, TimestampNTZType):
        if isinstance(given, same) and isinstance(wanted, same):
            return None
    moments = (TimestampType, TimestampNTZType)
    if isinstance(wanted, moments) and isinstance(given, (*moments, DateType, StringType)):
        return wanted
    if isinstance(given, StringType) and isinstance(wanted, (*exact, DateType, BooleanType)):
        return wanted
    raise OptionError(
        f"lookup_join with {name!r}, on: column {event.name!r} is {given.simpleString()}, but key column {key.name!r} "
        f"of the table is {wanted.simpleString()}; cast one so that both have the same type"
    )
