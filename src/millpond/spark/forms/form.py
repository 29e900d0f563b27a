"""The seam between a shard's batch and the form in which user code gets it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import TimerValues

from millpond.spark.spec.lease import Lease
from millpond.spark.spec.operator import OperatorSpec
from millpond.state.backend.timer_queue import DueTimer
from millpond.state.checkpoint import Shard


@dataclass
class Tally:
    """What a form counts on its way."""

    dead_letters: int = 0


@dataclass(frozen=True)
class ShardBatch:
    """One batch of one shard, as a form sees it.

    Attributes:
        spec: the operator; its processor was made for this batch alone, and has declared its states.
        shard: holds the live state.
        times: what user code is told of the batch's times.
        lease: the attempt's hold on the shard.
        tally: where the form counts.
    """

    spec: OperatorSpec
    shard: Shard
    times: TimerValues
    lease: Lease
    tally: Tally = field(default_factory=Tally)

    def check_lease(self) -> None:
        """Stop where another attempt has the shard. To be asked before every call of user code."""
        if self.lease.superseded_by:
            self.lease.refuse()


class Form(Protocol):
    """How user code gets rows and expired timers, and how what it gives becomes Arrow.

    `rows` and `timers` call user code as their result is read, and give tables of the operator's output schema; with
    `on_error="dead-letter"` of that and a column of dead letters.
    """

    def initial(self, key_groups: Iterable[tuple[int, pa.Table]]) -> None:
        """Hand out the rows of an initial state."""
        ...

    def rows(self, key_groups: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
        """Work off the rows of each key group, every key's in the order in which they came."""
        ...

    def timers(self, due: Iterable[DueTimer]) -> Iterator[pa.Table]:
        """Work off expired timers in the order of their time, and delete each after its handler ran."""
        ...
