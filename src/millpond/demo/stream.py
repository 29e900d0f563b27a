"""The streaming query: flights in, looked up, followed per aircraft, and written once.

Second stage of the demo's data path. The query reads one slice a micro-batch, joins what is known of
the aircraft and of the weather, and keys the rows by tail number for `AircraftDay`.

The invariant is the sink's: one micro-batch is one Parquet file named after the batch's id. Spark
runs a batch again after a crash, with the same id and the same rows; a file that is there already is
kept, so every flight comes out once. The file also carries the batch's `Measure` in its metadata: rows
and measure appear in the same instant.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from millpond.demo.replay import EVENTS
from millpond.demo.report import CacheCount, Measure
from millpond.demo.workdir import publish
from millpond.errors import CorruptionError, DataError, MillpondError

_MEASURE_KEY = b"millpond.measure"

CacheCounts = Callable[[], Mapping[str, CacheCount]]
"""Gives the counts of all lookup caches since the query started."""


class AircraftSink:
    """Writes each micro-batch as one file, once; used as a `foreachBatch` function.

    Delivery: each row once, however often Spark repeats a batch. Freshness: a file appears when its
    batch is done. Recovery: nothing to do, files that are there stay.

    Args:
        folder: where the files go.
        events_of: how many events each batch takes in, by batch id.
        cache_counts: the lookup caches so far.
        clock: seconds, monotonic.
        on_step: told of each batch that was written.
    """

    def __init__(
        self,
        folder: Path,
        events_of: Sequence[int],
        cache_counts: CacheCounts,
        clock: Callable[[], float],
        on_step: Callable[[Measure], None],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.failure: MillpondError | None = None
        self._folder = folder
        self._events_of = events_of
        self._cache_counts = cache_counts
        self._clock = clock
        self._on_step = on_step
        self._last_s = clock()
        self._last_counts: Mapping[str, CacheCount] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, unless it has been written."""
        rows = batch.toArrow()
        measure = self._measure(batch_id)
        table = rows.replace_schema_metadata({_MEASURE_KEY: msgspec.json.encode(measure)})
        try:
            publish(self._folder / f"batch-{batch_id:06d}.parquet", partial(pq.write_table, table))
        except MillpondError as error:
            self.failure = error
            raise
        self._on_step(measure)

    def _measure(self, batch_id: int) -> Measure:
        now, counts = self._clock(), dict(self._cache_counts())
        since = {name: count - self._last_counts.get(name, CacheCount()) for name, count in counts.items()}
        seconds, self._last_s, self._last_counts = now - self._last_s, now, counts
        return Measure("stream", seconds, self._events_of[batch_id], since)


def written_measures(folder: Path) -> list[Measure]:
    """The measures of all batches in `folder`, in their order."""
    return [
        msgspec.json.decode(pq.read_schema(path).metadata[_MEASURE_KEY], type=Measure)
        for path in sorted(folder.glob("batch-*.parquet"))
    ]


def written(folder: Path) -> dict[str, int]:
    """How many batches are in `folder`, and how many rows they hold.

    Raises:
        CorruptionError: a file does not read, or two rows are of one flight, so a batch went out twice.
    """
    paths = sorted(folder.glob("batch-*.parquet"))
    flights = pa.concat_tables([_opened(path).read(columns=["flight_id"]) for path in paths])["flight_id"]
    twice = len(flights) - len(flights.unique())
    if twice:
        raise CorruptionError(f"{folder}: {twice} flights came out twice. Remove the workdir and start again.")
    return {"batches": len(paths), "rows": len(flights)}


def events_per_slice(folder: Path) -> list[int]:
    """How many events each slice in `folder` holds, in the order of the stream.

    Raises:
        CorruptionError: a slice does not read.
        DataError: a slice has other columns than an event.
    """
    counts = []
    for path in sorted(folder.glob("slice-*.parquet")):
        slice_ = _opened(path)
        for field in EVENTS:
            at = slice_.schema_arrow.get_field_index(field.name)
            got = "no such column" if at < 0 else str(slice_.schema_arrow.field(at).type)
            if got != str(field.type):
                raise DataError(
                    f"{path}: expected the column {field.name!r} of type {field.type}, found {got}. "
                    "The slices are written by the demo alone; remove the workdir and start again."
                )
        counts.append(slice_.metadata.num_rows)
    return counts


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise CorruptionError(
            f"{path}: expected a whole Parquet file, and it does not read: {error}. Remove the workdir and start again."
        ) from error
