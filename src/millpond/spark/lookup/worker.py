"""The lookup join in a Python worker: Arrow batches in, joined batches out.

Spark hands a partition to any worker and may end a worker at any time. So a worker keeps only a cache, and a new
worker gives the same answers as an old one. The invariant: each key is looked up once per batch of up to
100,000 events, and every event of the key gets exactly the rows of that answer.

A batch is joined without converting its rows: its keys are numbered (`distinct_keys`), the distinct keys are looked
up, and both sides are taken by position. Events whose key has a null get number -1 and match nothing. Keys are looked
up in this process (`LookupTable`), in a file that all workers of the machine map (`Published`), or in a state host of
the executor (`Hosted`).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

from millpond.lookup import LookupStats, LookupTable
from millpond.spark.environment.task_environment import TaskEnvironment
from millpond.spark.environment.tracebacks import fold_own_frames
from millpond.spark.environment.worker_garbage import leave_modules_out
from millpond.spark.host.client import HostAddress, found_rows
from millpond.spark.host.wire import End, Keys, OpenLookups
from millpond.spark.lookup.counts import WORKER_IDLE_MS, Counted
from millpond.spark.lookup.files import Published
from millpond.spark.lookup.hosted import decoded
from millpond.spark.lookup.invalidations import InvalidationsPlace
from millpond.spark.lookup.letters import failed_events, letters
from millpond.spark.lookup.rows import (
    FullRows,
    Matches,
    PartialRows,
    Positions,
    Rows,
    RowsWanted,
    distinct_keys,
    one_batch,
    opened,
)
from millpond.spark.lookup.shared.rows import Sharing
from millpond.spark.shuffle.arrow_lots import large_batches
from millpond.spark.spec.operator import DEAD_LETTER


@dataclass(frozen=True)
class JoinPlan:
    """One lookup join as a worker runs it.

    Attributes:
        source: a table to open in the worker, the place of a fully cached table's files (its declaration stays on the
            driver), or a table in state hosts.
        key_places: the positions of the event's columns that make its key, in the order of the table's keys.
        kept: the number of the event's columns. Those after them were added only to cast a key.
        inner: whether events without a match are dropped.
        wanted: the columns to add.
        letter: the type of a dead letter; None if a failing key fails the batch.
        invalidations: where invalidated keys are found, for a cache in the worker.
    """

    source: "LookupTable | Published | Hosted"
    key_places: tuple[int, ...]
    kept: int
    inner: bool
    wanted: RowsWanted
    letter: pa.StructType | None = None
    invalidations: InvalidationsPlace | None = None


class Hosted:
    """A table whose cache is in a state host of each executor, and so outlives the workers.

    Args:
        wanted: the columns that the join adds.
        table: the table.
        application: the id of the Spark application that the hosts belong to.
        invalidations: where invalidated keys are found; None if the table's caches are not told of them.
        sharing: how all executors share one cache; None if each has its own.
    """

    def __init__(
        self,
        wanted: RowsWanted,
        table: LookupTable,
        application: str,
        invalidations: InvalidationsPlace | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.invalidations = invalidations
        self._carried: Any = (wanted, table, sharing)
        self._pickled = b""
        self.application = application

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the table to bytes that only the host opens. Spark registers its broadcasts during this pickling."""
        return {**vars(self), "_carried": None, "_pickled": cloudpickle.dumps(self._carried)}

    def open(self) -> "HostRows":
        """Connect to the host of this executor."""
        return HostRows(self, self._pickled)


class HostRows:
    """A table in the state host of this executor."""

    def __init__(self, source: Hosted, pickled: bytes) -> None:
        address = HostAddress.first(source.application)
        self._connection = address.connect()
        self._waiting = False
        environment, invalidated = TaskEnvironment.of_worker().encode(), _newest(source.invalidations)
        executor = address.socket_path.parent.name
        self._connection.send(OpenLookups(os.getppid(), environment, invalidated, executor), pickled)

    def match(self, keys: Sequence[pa.Array]) -> Matches:
        """Look up the keys in the host."""
        names = [str(place) for place in range(len(keys))]
        self._waiting = True
        self._connection.send(Keys(), memoryview(one_batch(pa.RecordBatch.from_arrays(list(keys), names=names))))
        found = decoded(*found_rows(self._connection))
        self._waiting = False
        return found

    def close(self) -> None:
        """End the conversation, unless a failed host has ended it already. The host keeps the cache."""
        with self._connection:
            if not self._waiting:
                self._connection.send(End())


def join_batches(
    plan: JoinPlan, batches: Iterator[pa.RecordBatch], report: Callable[[Counted], None]
) -> Iterator[pa.RecordBatch]:
    """Yield each joined batch of a partition, followed by its dead letters. `report` gets the batch's counters."""
    leave_modules_out()
    try:
        with closing(_opened(plan)) as rows:
            for batch in large_batches(batches):
                numbers, keys = distinct_keys([batch.column(place) for place in plan.key_places])
                matches = rows.match(keys)
                repeats = int(np.count_nonzero(numbers >= 0)) - len(keys[0])
                report(matches.counted + Counted(LookupStats(event_hit_count=repeats)))
                yield from joined(plan, batch, numbers, matches)
    except Exception as error:
        fold_own_frames(error)
        raise


def joined(plan: JoinPlan, batch: pa.RecordBatch, numbers: Positions, matches: Matches) -> Iterator[pa.RecordBatch]:
    """Yield one joined batch, then the dead letters of failed keys. `numbers` has the key number of each event."""
    if not matches.failures:
        yield join_batch(plan, batch, numbers, matches)
        return
    failed = failed_events(numbers, matches.failures)
    yield join_batch(plan, batch.filter(pa.array(~failed)), numbers[~failed], matches)
    yield _letters(plan, batch.filter(pa.array(failed)), numbers[failed], matches)


def join_batch(plan: JoinPlan, batch: pa.RecordBatch, numbers: Positions, matches: Matches) -> pa.RecordBatch:
    """Return a batch with matching rows added, one row per match. `numbers` has the key number of each event."""
    starts, counts = _of_events(numbers, matches)
    repeats = counts if plan.inner else np.maximum(counts, 1)
    once = bool((repeats == 1).all())
    events = np.arange(len(numbers)) if once else np.repeat(np.arange(len(numbers)), repeats)
    places = starts[events]
    if not once:
        places += np.arange(len(events)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    unmatched = counts[events] == 0
    if matches.places is not None:
        known = ~unmatched
        places[known] = matches.places[places[known]]
    taken = pa.array(places, pa.int64(), mask=unmatched)
    kept = batch.select(range(plan.kept))
    if not once:
        kept = kept.take(pa.array(events))
    columns = [
        pc.take(column, taken).cast(field.type)
        for column, field in zip(matches.rows, plan.wanted.row_fields, strict=True)
    ]
    schema = _joined_schema(plan, batch)
    if plan.letter is not None:
        schema = schema.append(pa.field(DEAD_LETTER, plan.letter))
        columns.append(pa.nulls(len(events), plan.letter))
    return pa.RecordBatch.from_arrays([*kept.columns, *columns], schema=schema)


def _joined_schema(plan: JoinPlan, batch: pa.RecordBatch) -> pa.Schema:
    return pa.schema([*list(batch.schema)[: plan.kept], *plan.wanted.row_fields])


def _letters(plan: JoinPlan, events: pa.RecordBatch, numbers: Positions, matches: Matches) -> pa.RecordBatch:
    assert plan.letter is not None  # noqa: S101 - without it a key that fails raises
    reasons = [matches.failures[number] for number in numbers.tolist()]
    return letters(events, reasons, plan.letter, _joined_schema(plan, events))


def _of_events(numbers: Positions, matches: Matches) -> tuple[Positions, Positions]:
    """Return where the rows of every event begin, and how many there are."""
    if not len(matches.counts):
        return np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    # Number -1 means no key. It indexes the last key's count, which is then set to 0.
    counts = matches.counts[numbers]
    counts[numbers < 0] = 0
    return matches.starts[numbers], counts


def _newest(invalidations: InvalidationsPlace | None) -> bytes:
    return b"" if invalidations is None else invalidations.newest()


def _opened(plan: JoinPlan) -> Rows:
    """Open the table for this join."""
    return plan.source.open() if isinstance(plan.source, Hosted) else opened_here(plan)


def opened_here(plan: JoinPlan, idle_ms: int = WORKER_IDLE_MS) -> PartialRows | FullRows:
    """Open the table in this process, which ends after `idle_ms` without work."""
    source = plan.source
    if isinstance(source, LookupTable):
        return opened(plan.wanted, source, idle_ms, _newest(plan.invalidations))
    assert not isinstance(source, Hosted), "what is hosted is not here"  # noqa: S101
    return FullRows(plan.wanted, source.newest())
