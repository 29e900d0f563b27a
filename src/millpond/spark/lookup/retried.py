"""A lookup join whose events wait for missing rows: the part that runs on the driver.

`join` plans the rest. The events are shuffled by key to a keyed operator (`waiting`), which joins them in the state
hosts. Events of hot keys, and those without a key, are spread as in `skew`, because the shard that looks up an event
makes no difference to the result.

No watermark passes through, as with every operator of Spark in processing time. So the watermark's mark is removed
from the output columns. Then Spark rejects at the start a query that would wait for a watermark for ever.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from millpond.spark.environment.worker_garbage import leave_modules_out
from millpond.spark.forms.handles import arrow_schema
from millpond.spark.lookup.counts import WORKER_IDLE_MS, Counted
from millpond.spark.lookup.hosted import HOST_IDLE_MS
from millpond.spark.lookup.skew import with_salts
from millpond.spark.lookup.waiting import LookUpAgain, MissingRetries
from millpond.spark.lookup.worker import JoinPlan
from millpond.spark.operator.event_time import unmarked
from millpond.spark.operator.key_columns import quoted
from millpond.spark.operator.keyed import keyed
from millpond.spark.operator.request import OperatorRequest
from millpond.spark.shuffle.pack import unpack
from millpond.spark.spec.operator import StateConfig

_SALT, _HOME = "__millpond_lookup_salt", "__millpond_lookup_home"
"""The name of the operator's key must never change, because checkpoints contain it."""


def retried_join(
    df: DataFrame,
    plan: JoinPlan,
    joined: StructType,
    retries: MissingRetries,
    counted: "Accumulator[Counted]",
    *,
    hot_key_share: float,
    hosts: int,
    host: str,
) -> DataFrame:
    """Join a stream, and let the events whose row is missing wait.

    Args:
        df: the columns of the events, followed by cast keys.
        plan: the join.
        joined: the columns of the output.
        retries: when and how often an event is looked up again.
        counted: the accumulator of the counters.
        hot_key_share: the share of a batch's events above which a key's events are spread.
        hosts: the number of state hosts of each executor for this join.
        host: "process" or "inline".
    """
    mark = plan.wanted.table_id
    keys = [F.col(quoted(df.columns[place])) for place in plan.key_places]
    homed = with_salts(df, keys, hot_key_share, _SALT).withColumn(_HOME, F.xxhash64(*keys, _SALT)).drop(_SALT)
    # The names of cast keys differ between sessions. In state, cast keys are named by their position.
    names = [*df.columns[: plan.kept], *(f"cast key {at}" for at in range(len(df.columns) - plan.kept))]
    events = pa.schema(list(zip(names, arrow_schema(df.schema).types, strict=True)))
    joined = unmarked(joined)
    idle_ms = HOST_IDLE_MS if host == "process" else WORKER_IDLE_MS
    operated = keyed(homed, _HOME).packed_output(
        OperatorRequest(
            form="arrow",
            processor=LookUpAgain(plan, retries, events, counted, idle_ms),
            output=joined,
            output_mode="Append",
            time_mode="ProcessingTime",
            initial=None,
            event_time_column="",
            late="keep",
            config=StateConfig(host=host, hosts=hosts),
            savepoint=None,
        )
    )

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        leave_modules_out()
        return unpack(batches)

    # `ReadingQueries` finds the queries with this join by this name.
    join.__name__ = mark
    return operated.mapInArrow(join, joined)
