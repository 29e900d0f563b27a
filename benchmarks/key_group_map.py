"""The map of key groups by temperature: which of them a heap that spills puts on disk, and which it keeps.

A year of flights out of New York, keyed by carrier and route: some routes are flown many times a day, others once a
week. What is remembered of a route is its newest flights. So the large state of a busy route is not much larger than
that of a quiet one, while it is asked for a hundred times as often. The process may grow by less than the state takes.

What is reported: how much of the state is on disk at the end, and how many of all requests came for it. The picture has
a square for each key group.

    .venv/bin/python -m benchmarks.key_group_map
"""

import argparse
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.report import report
from millpond.demo import data
from millpond.state import Context, Harness, States
from millpond.state.spillable.process_memory import process_memory_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEWEST = 500
"""Flights that are remembered of a route."""

ROOM_BYTES = 24 << 20
"""What the process may grow by before key groups go to disk: less than the state and all that comes with it take."""

COLUMNS = 16
"""Of squares in the picture."""

_HOT, _SEAM = "YlOrRd", "#333333"
_SPAN = 300
"""Of the colours: what is this many times colder than the hottest is as cold as what nobody asks for."""


class Flight(NamedTuple):
    """One record."""

    carrier: str
    origin: str
    dest: str
    time_ms: int
    tailnum: str | None
    delay: float | None


class Routes:
    """The operator: counts the flights of a route and remembers the newest of them."""

    def open(self, states: States) -> None:
        """Declare both states."""
        self.flights = states.value("flights", int, default=0)
        self.newest = states.map("newest", int, tuple[int, str | None, float | None])

    def process(self, _key: tuple[str, str, str], flight: Flight, _context: Context) -> None:
        """Put a flight in the place of the oldest."""
        number = self.flights.get()
        self.flights.update(number + 1)
        self.newest.put(number % NEWEST, (flight.time_ms, flight.tailnum, flight.delay))


def flights() -> pa.Table:
    """The records, in the order of their times."""
    table = data.load().flights.sort_by("time_ms")
    return table.select(["carrier", "origin", "dest", "time_ms", "tailnum", "dep_delay"])


def run(records: pa.Table, room_bytes: int = ROOM_BYTES) -> pa.Table:
    """Work the records off in a process that may grow by so much before it spills; the map at the end."""
    gc.collect()
    # Half of the limit is the mark above which a turn spills.
    limit = 2 * (process_memory_bytes().own + room_bytes)
    options = {
        "state.backend.type": "spillable",
        "state.backend.spillable.memory-limit": str(limit),
        "state.backend.spillable.chunk-size": "16mb",
        "state.backend.spillable.trigger-interval": "100 ms",
    }
    with Harness(Routes, key=lambda flight: flight[:3], key_type=tuple[str, str, str], options=options) as harness:
        for some in _batches(records):
            harness.process_many(some)
            harness.checkpoint()
        return harness.temperatures()


def _batches(records: pa.Table, size: int = 20_000) -> Iterator[list[Flight]]:
    for first in range(0, records.num_rows, size):
        columns = records.slice(first, size).to_pydict()
        yield [Flight(*row) for row in zip(*columns.values(), strict=True)]


def by_group(temperatures: pa.Table) -> pa.Table:
    """A row per key group: all its states together."""
    found = temperatures.group_by(["key_group", "place"]).aggregate([("bytes", "sum"), ("rate", "max")])
    return found.rename_columns(["key_group", "place", "bytes", "rate"]).sort_by("key_group")


def summed(groups: pa.Table) -> list[tuple[str, int, float, float]]:
    """Of each place: key groups, MB, requests."""
    rows = []
    for place in ("heap", "disk"):
        here = groups.filter(pc.equal(groups["place"], place))
        megabytes, requests = (pc.sum(here[name]).as_py() or 0 for name in ("bytes", "rate"))
        rows.append((place, here.num_rows, megabytes / 1e6, requests))
    return rows


def draw(axes: "Axes", groups: pa.Table) -> None:
    """A square per key group: its colour is how busy it is; a dot, that it is on disk."""
    from matplotlib.colors import LogNorm

    rates = np.maximum(groups["rate"].to_numpy(), 1.0).reshape(-1, COLUMNS)
    picture = axes.imshow(rates, cmap=_HOT, norm=LogNorm(rates.max() / _SPAN, rates.max(), clip=True))
    on_disk = [at for at, place in enumerate(groups["place"].to_pylist()) if place == "disk"]
    axes.scatter(
        [at % COLUMNS for at in on_disk],
        [at // COLUMNS for at in on_disk],
        s=60,
        facecolor="white",
        edgecolor=_SEAM,
        label="on disk",
    )
    axes.figure.colorbar(picture, ax=axes, shrink=0.72, label="requests, decayed")
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xticks(range(0, COLUMNS, 4))
    axes.set_yticks(range(len(rates)), [str(row * COLUMNS) for row in range(len(rates))])
    axes.set_ylabel("key group of the row's first square")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.06))


def main() -> None:
    """Run the year, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.parse_args()
    records = flights()
    groups = by_group(run(records))
    rows = summed(groups)
    _, (_, on_disk, disk_mb, requests) = rows
    result: dict[str, Any] = {
        "records": records.num_rows,
        "key_groups_on_disk": on_disk,
        "request_share_of_disk": round(requests / sum(row[3] for row in rows), 3),
    }
    report(
        "key_group_map",
        title="Key groups by temperature, a year of flights by route",
        columns=("place", "key groups", "MB", "requests, decayed"),
        rows=rows,
        result=result | {"disk_mb": round(disk_mb, 1)},
        draw=lambda axes: draw(axes, groups),
    )


if __name__ == "__main__":
    main()
