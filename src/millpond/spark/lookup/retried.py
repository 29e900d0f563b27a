"""A lookup join whose events wait for rows that are missing: the driver's part.

Beside `join`, which plans the rest. The events go by key through a keyed operator (`waiting`), which joins them in the
state hosts. Events of hot keys, and those without a key, are spread as in `skew`: which shard looks an event up makes
no difference to what it finds.

No watermark passes through, as none passes through any operator of Spark's in processing time. So the output's columns
do not bear the mark of one: Spark then refuses at the start what would wait for a watermark for ever.
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
"""The operator's key has one name for ever: a checkpoint keeps to it."""


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
    """Join a stream, and have the events whose row is missing wait.

    Args:
        df: the events, and behind them the keys that were cast.
        plan: the join.
        joined: what comes out.
        retries: when an event is looked up again, and how often.
        counted: where what was counted goes.
        hot_key_share: the share of a batch's events beyond which a key's events are spread.
        hosts: how many state hosts an executor has for it.
        host: "process" or "inline".
    """
    mark = plan.wanted.table_id
    keys = [F.col(quoted(df.columns[place])) for place in plan.key_places]
    homed = with_salts(df, keys, hot_key_share, _SALT).withColumn(_HOME, F.xxhash64(*keys, _SALT)).drop(_SALT)
    # Keys that were cast have names of this session; those that wait are told by their place.
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

    # By this name `ReadingQueries` finds the queries that have the join.
    join.__name__ = mark
    return operated.mapInArrow(join, joined)
