"""The protocol between a shard's batch and the form in which user code gets its rows."""

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
    """What a form counts during a batch."""

    dead_letters: int = 0


@dataclass(frozen=True)
class ShardBatch:
    """One batch of one shard, as a form sees it.

    Attributes:
        spec: the operator. Its processor was made for this batch only, and has declared its states.
        shard: holds the live state.
        times: the batch's times, as user code gets them.
        lease: the attempt's lease on the shard.
        tally: the form's counts.
    """

    spec: OperatorSpec
    shard: Shard
    times: TimerValues
    lease: Lease
    tally: Tally = field(default_factory=Tally)

    def check_lease(self) -> None:
        """Raise an error if another attempt has the shard. Call it before every call of user code."""
        if self.lease.superseded_by:
            self.lease.refuse()


class Form(Protocol):
    """How user code gets rows and expired timers, and how its output becomes Arrow.

    `rows` and `timers` call user code while their result is read. They yield tables of the operator's output schema,
    with a column of dead letters added under `on_error="dead-letter"`.
    """

    def initial(self, key_groups: Iterable[tuple[int, pa.Table]]) -> None:
        """Process the rows of an initial state."""
        ...

    def rows(self, key_groups: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
        """Process the rows of each key group. The rows of a key are in the order in which they came."""
        ...

    def timers(self, due: Iterable[DueTimer]) -> Iterator[pa.Table]:
        """Process expired timers in the order of their time. Delete each after its handler ran."""
        ...
