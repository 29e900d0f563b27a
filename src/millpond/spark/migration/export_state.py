"""Convert a savepoint to a DataFrame for the `initialState` of PySpark's own operator, so that a job can go back.

PySpark gives a key's initial state to `handleInitialState` as rows. So each key has one row here, with a column for
each state and one for the timers. Spark's tasks read the savepoint's files, and one shuffle brings the parts of a key
together.

In PySpark a value's time to live begins when it is written. So expired values are left out here, and the others get
their whole time to live again.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import DataError, OptionError
from millpond.spark.inspect.read_state import StateColumns
from millpond.spark.operator.key_columns import quoted
from millpond.state.checkpoint import Savepoint
from millpond.state.checkpoint.format.savepoint_manifest import SavepointFile
from millpond.state.checkpoint.format.seal import Seal
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.timer_states import TIMER_STATES

_TIMERS_COLUMN = "timers"
_BATCH_ROWS = 10_000
_MOST_TASKS = 1_000


def export_state(
    spark: SparkSession,
    location: str,
    *,
    prefix: str = "",
    now_ms: int | None = None,
    seal: Seal | bytes | None = None,
) -> DataFrame:
    """Return a savepoint as a DataFrame for PySpark's `initialState`, one row for each key.

    The columns are the key's, then one for each state under its name, then `timers`:

    | state | column |
    |---|---|
    | value | a struct of its fields |
    | list | an array of structs, in order |
    | map | an array of structs of `key` and `value`, both structs |
    | timers | `timers`: an array of their times in ms, ascending |

    A column is null where the key has no such state. Group the DataFrame by the key's columns.

    Args:
        spark: any session.
        location: the savepoint, of `savepoint`, `import_state` or a `ProcessorHarness`.
        prefix: text before the names of the states and of `timers`. Use it if a key column has one of these names.
        now_ms: values that have expired by this time are left out. None: the time when the DataFrame is computed.
        seal: the key that the savepoint is sealed with; None if it is not sealed.

    Raises:
        OptionError: two columns would have the same name.
        DataError: a state holds Python objects, which have no columns.
        CorruptionError: the savepoint is damaged. Its files are read when the DataFrame is.
    """
    seal = Seal.of(seal)
    saved = Savepoint.open(location, seal=seal)
    key_schema = pa.ipc.read_schema(pa.py_buffer(saved.contents.key_schema))
    states = [state for state in saved.states() if state.name not in TIMER_STATES]
    _check_names(saved, key_schema.names, [state.name for state in states], prefix)
    now = F.unix_millis(F.current_timestamp()) if now_ms is None else F.lit(now_ms)
    keys = [quoted(name) for name in key_schema.names]
    parts: list[DataFrame] = []
    columns: dict[str, Column] = {}
    for state in saved.states():
        name = prefix + (_TIMERS_COLUMN if state.name in TIMER_STATES else state.name)
        part = _part(spark, location, saved, state, seal).select("key.*", _content(state, now).alias(name))
        parts.append(part.where(F.col(quoted(name)).isNotNull()))
        columns[name] = _of_key(state, F.col(quoted(name))).alias(name)
    if not parts:
        raise DataError(f"{saved.location} holds no states, so there is nothing to begin with. Begin without it.")
    together = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
    return together.groupBy(*keys).agg(*columns.values())


def _check_names(saved: Savepoint, keys: Sequence[str], states: Sequence[str], prefix: str) -> None:
    names = [prefix + name for name in (*states, _TIMERS_COLUMN)]
    # Spark's column names are not case-sensitive.
    taken = [name.lower() for name in (*keys, *names)]
    twice = sorted({name for name in names if taken.count(name.lower()) > 1})
    if twice:
        raise OptionError(
            f"{saved.location}: the columns {twice} would be there twice, among the key columns {list(keys)}, the "
            f"states {list(states)} and {_TIMERS_COLUMN!r}. Give a prefix for the states, such as prefix='state_'."
        )
    objects = sorted(state.name for state in saved.states() if state.serializer is not None)
    if objects:
        raise DataError(
            f"{saved.location}: the states {objects} hold Python objects, for which PySpark has no columns. Read them "
            "with millpond.state.reader.StateReader."
        )


def _part(spark: SparkSession, location: str, saved: Savepoint, state: StateDescriptor, seal: Seal | None) -> DataFrame:
    """Read one state in the columns of Spark's state data source, with whole lists. Each task reads some files."""
    files = [file for file in saved.contents.files if file.state == state.name]
    shape = StateColumns(state, flat=False)
    key_schema = pa.ipc.read_schema(pa.py_buffer(saved.contents.key_schema))
    numbers = spark.range(0, len(files), 1, max(1, min(len(files), _MOST_TASKS)))
    return numbers.mapInArrow(partial(_read_files, location, seal, files, shape), shape.schema(key_schema))


def _read_files(
    location: str,
    seal: Seal | None,
    files: Sequence[SavepointFile],
    shape: StateColumns,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: read the files with these numbers."""
    saved = Savepoint.open(location, seal=seal)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from shape.table(saved.file_rows(files[number]), 0).to_batches(max_chunksize=_BATCH_ROWS)


def _content(state: StateDescriptor, now: Column) -> Column:
    """Return the part of a key's state that is in one row; null if it has expired."""
    if state.name in TIMER_STATES:
        return F.col("expiration_timestamp_ms")
    if state.kind is StateKind.LIST:
        elements = F.col("list_value")
        if state.ttl is not None:
            elements = F.filter(elements, lambda item: item["ttlExpirationMs"] > now)
            elements = F.transform(elements, lambda item: item["value"])
        return F.when(F.size(elements) > 0, elements)
    value = F.col("user_map_value" if state.kind is StateKind.MAP else "value")
    alive = F.lit(True) if state.ttl is None else value["ttlExpirationMs"] > now
    bare = value if state.ttl is None else value["value"]
    entry = F.struct(F.col("user_map_key").alias("key"), bare.alias("value"))
    return F.when(alive, entry if state.kind is StateKind.MAP else bare)


def _of_key(state: StateDescriptor, content: Column) -> Column:
    """Combine the parts of a state from all rows of a key."""
    if state.name not in TIMER_STATES and state.kind is not StateKind.MAP:
        return F.first(content, ignorenulls=True)
    found = F.collect_list(content)
    if state.name in TIMER_STATES:
        found = F.array_sort(found)
    return F.when(F.size(found) > 0, found)
