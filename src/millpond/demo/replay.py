"""The flights as an event stream: files that land in a folder, in the order in which news arrives.

Second on the demo's data path, between the clean tables and the streaming query. An event happens at
`time_ms` and its record is received at `received_ms`; the stream is in the order of the latter. Most
records come within a minute, some are minutes late, a few are hours late, so the stream is roughly
but not wholly in event-time order, as real ones are. Who is late is drawn from a seed: the same
flights give the same stream, so a run can be stopped anywhere and continued.

The invariant: a file is there whole or not at all, and once there it never changes. Each is written
under a hidden name, flushed to disk, and then linked to its own name. Spark reads a folder by the
files' modification times, so these are set, one second apart, to the order of the slices.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.demo.data import DAY_MS, FLIGHTS, HOUR_MS, MINUTE_MS
from millpond.demo.workdir import publish
from millpond.errors import OptionError

EVENTS = FLIGHTS.append(pa.field("received_ms", pa.int64(), nullable=False))
"""One record of the stream: the flight, and when news of it was received, in ms UTC."""

SEED = 2013
_FIRST_FILE_TIME_S = 1_400_000_000
MOST_LAG_MS = 6 * HOUR_MS
"""The longest that a record takes to be received."""

_PROMPT, _SOME_MINUTES = 0.90, 0.985


def choose(flights: pa.Table, *, events: int | None = None, until_ms: int | None = None) -> pa.Table:
    """The first `events` flights by event time, and of those the ones before `until_ms` (exclusive).

    The table is in event-time order. Both limits may be None, which means no limit.

    Raises:
        OptionError: nothing is left.
    """
    ordered = flights.sort_by([("time_ms", "ascending"), ("flight_id", "ascending")])
    if until_ms is not None:
        ordered = ordered.filter(pc.field("time_ms") < until_ms)
    chosen = ordered if events is None else ordered.slice(0, events)
    if chosen.num_rows == 0:
        raise OptionError(
            "No flights are left: --events must be at least 1 and --until after 2013-01-01, the first flight's day."
        )
    return chosen


def receive(flights: pa.Table, *, seed: int = SEED) -> pa.Table:
    """Give each flight the moment its record is received, and put the stream in that order.

    Nine in ten arrive within a minute, most others within half an hour, and 1.5 % within six hours.
    The lag of a flight follows from `seed` and its `flight_id` alone, so a shorter run draws the same.
    """
    ids = flights["flight_id"].to_numpy()
    draws = np.random.default_rng(seed).random((int(ids.max()) + 1, 2))[ids]
    kind, share = draws[:, 0], draws[:, 1]
    lag_ms = np.select(
        [kind < _PROMPT, kind < _SOME_MINUTES],
        [share * MINUTE_MS, MINUTE_MS + share * 29 * MINUTE_MS],
        30 * MINUTE_MS + share * (MOST_LAG_MS - 30 * MINUTE_MS),
    ).astype(np.int64)
    received = pa.array(flights["time_ms"].to_numpy() + lag_ms)
    return (
        flights.append_column(EVENTS.field("received_ms"), received)
        .sort_by([("received_ms", "ascending"), ("flight_id", "ascending")])
        .cast(EVENTS)
    )


def out_of_order(stream: pa.Table) -> int:
    """How many records come after one of a later event."""
    times = stream["time_ms"].to_numpy()
    return int((times < np.maximum.accumulate(times)).sum())


def write_slices(stream: pa.Table, folder: Path, *, slices: int) -> int:
    """Write the stream as about `slices` files of equal size into `folder`; give the number of files.

    Files that are already there are kept: they were whole when they appeared, and the stream is the same.

    Raises:
        UnavailableError: the disk is full or does not let the file be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-stream.num_rows // max(1, min(slices, stream.num_rows)))
    starts = range(0, stream.num_rows, size)
    for number, start in enumerate(starts):
        path = folder / f"slice-{number:05d}.parquet"
        if not path.exists():
            write = partial(pq.write_table, stream.slice(start, size))
            publish(path, write, mtime_s=_FIRST_FILE_TIME_S + number)
    return len(starts)


def default_batch_end_ms(flights: pa.Table) -> int:
    """The last midnight UTC at least two days before the last event, or the first event's if that is later.

    >>> day = 24 * 3_600_000
    >>> flights = pa.table({"time_ms": [15_706 * day + 1, 15_712 * day + 5]})
    >>> default_batch_end_ms(flights) // day
    15710
    """
    bounds = pc.min_max(flights["time_ms"]).as_py()
    last = (bounds["max"] - 2 * DAY_MS) // DAY_MS * DAY_MS
    return int(max(last, bounds["min"] // DAY_MS * DAY_MS))
