"""Collecting a whole Arrow table against collecting key by key: `collect_table` against `CompiledCells.collect`.

Both start at the same Arrow table and end with the IR of every key, and both are checked to be equal. Row by
row means: columns to Python lists, events grouped in a dict, `collect` once per key. Seconds are processor
time of this process, the best of the rounds, with garbage collection off in both.

    .venv/bin/python -m benchmarks.columnar_ingest            # 1,000,000 events over 100,000 keys, about a minute
    .venv/bin/python -m benchmarks.columnar_ingest --events 100000
"""

import argparse
import gc
import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.features import Aggregation, Field, GroupBy
from millpond.features.columnar.collect_table import collect_table, group_rows
from millpond.features.compiled_cells import CompiledCells, compile_cells

EVENTS = 1_000_000
EVENTS_PER_KEY = 10
ROUNDS = 3

WORKLOADS: dict[str, tuple[Aggregation, ...]] = {
    "count_sum_average_min_max": tuple(
        Aggregation(operation, "price") for operation in ("count", "sum", "average", "min", "max")
    ),
    "last_k": (Aggregation("last_k", "title", k=5),),
    "unique_count": (Aggregation("unique_count", "title"),),
}


def events_table(events: int) -> pa.Table:
    """Events with a key, a time, a price in cents and one of 1,000 titles."""
    draw = np.random.default_rng(1)
    return pa.table(
        {
            "key": draw.integers(0, max(1, events // EVENTS_PER_KEY), events),
            "time_ms": draw.integers(0, 1 << 40, events),
            "price": np.round(draw.lognormal(3, 1, events), 2),
            "title": pa.array([f"title {number}" for number in range(1000)]).take(
                pa.array(draw.integers(0, 1000, events))
            ),
        }
    )


def by_arrays(cells: CompiledCells, table: pa.Table) -> dict[int, Any]:
    """Collect the table as a whole."""
    groups = group_rows(table.select(["key"]))
    irs = collect_table(cells, groups, table["time_ms"], table).irs()
    return dict(zip(table["key"].to_numpy()[groups.first_rows].tolist(), irs, strict=True))


def row_by_row(cells: CompiledCells, table: pa.Table) -> dict[int, Any]:
    """Collect the events of each key by themselves."""
    events: defaultdict[int, tuple[list[int], list[Any]]] = defaultdict(lambda: ([], []))
    inputs = zip(table["price"].to_pylist(), table["title"].to_pylist(), strict=True)
    for key, time_ms, values in zip(table["key"].to_pylist(), table["time_ms"].to_pylist(), inputs, strict=True):
        times, rows = events[key]
        times.append(time_ms)
        rows.append(values)
    return {key: cells.collect(*own) for key, own in events.items()}


def columnar(events: int = EVENTS, rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Measure every workload: events per second of both, and how many times the first is faster."""
    table = events_table(events)
    measured: dict[str, dict[str, float]] = {"events_per_second": {}, "row_by_row": {}, "ratio": {}}
    for name, aggregations in WORKLOADS.items():
        inputs = (Field("price", "double"), Field("title", "string"))
        cells = compile_cells(GroupBy("ingest", (Field("key", "long"),), inputs, aggregations))
        assert by_arrays(cells, table) == row_by_row(cells, table)
        arrays = min(_seconds(by_arrays, cells, table) for _ in range(rounds))
        rows = min(_seconds(row_by_row, cells, table) for _ in range(rounds))
        measured["events_per_second"][name] = round(events / arrays)
        measured["row_by_row"][name] = round(events / rows)
        measured["ratio"][name] = round(rows / arrays, 1)
    return measured


def _seconds(collect: Callable[[CompiledCells, pa.Table], Any], cells: CompiledCells, table: pa.Table) -> float:
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        collect(cells, table)
        return time.process_time() - start
    finally:
        gc.enable()


def main() -> None:
    """Print a line for each workload, and last the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    measured = columnar(arguments.events, arguments.rounds)
    for name, ratio in measured["ratio"].items():
        arrays, rows = measured["events_per_second"][name], measured["row_by_row"][name]
        print(f"{name:26} {arrays:>12,} events/s, row by row {rows:>10,}: {ratio} times")
    print(json.dumps({"columnar": measured}))


if __name__ == "__main__":
    main()
