"""What a record costs in keyed state, beside the same on a bare dictionary.

Counts per key, over 1,000 hot keys: the least that an operator can ask of its state. All set-ups run in one process,
and take turns with each other and with the dictionary pass by pass, so that a slow moment of the machine meets all
alike. The figure is the median of the passes, and the spread beside it their quartiles.

| figure | what a record does |
|---|---|
| `rmw_us` | `add(1)`: one call that reads, changes and writes |
| `update_with_us` | the same by a function of the old value |
| `get_us`, `update_us` | one read, one write |
| `many_us` | `add_many`: all keys of a key group at once, by record |
| `dict_us` | `counts[key] = counts.get(key, 0) + 1`, by the very keys that the states get, which are tuples |
| `dict_of_texts_us` | the same by the texts in them |

Times are the thread's own processor time, so that other work on the machine counts least. A record makes its key
current, which is in the figures; key groups are entered once for all their keys, and versions end between passes. The
cache holds all keys, so that every record hits. The harness works off records one by one.

    .venv/bin/python -m benchmarks.state_record
    .venv/bin/python -m benchmarks.state_record --passes 5    # quick: no result is kept
"""

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import grouped_bars, report
from millpond.state import Harness
from millpond.state.backend.batch_access import ManyKeys, add_many
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.spi import HeapBackend, KeyedStateBackend, LruStateCache, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.rows import Row
from millpond.state.types.serializer import msgspec_serializer

PASSES = 51
KEYS = 1_000
KEY_GROUPS = 4
TURNS = 10
"""How often a pass goes through all keys."""
COUNT = StateDescriptor("count", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int))
OPERATIONS = ("rmw_us", "update_with_us", "get_us", "update_us", "many_us")
NAMES = {"heap": "heap", "lru": "LRU cache, all hits", "rocksdb": "RocksDB"}
BARS = {
    "heap": {"rmw_us": 3.0, "many_us": 2.0},
    "lru": {"rmw_us": 3.5, "many_us": 2.0},
    "rocksdb": {"many_us": 0.5},
}
"""Times the dictionary's, and for RocksDB times its own `rmw_us`, at most."""
GOAL_HARNESS = 1_500_000

Pass = Callable[[], None]


class Counts:
    """What the harness runs."""

    def open(self, states: Any) -> None:
        """One count a key."""
        self.count = states.value("count", int, default=0)

    def process(self, _key: str, _record: str, _context: Any) -> None:
        """One more."""
        self.count.add(1)


def words() -> list[tuple[int, list[str]]]:
    """The keys of each key group, in any order."""
    numbers = list(range(KEYS))
    random.Random(7).shuffle(numbers)
    return [(group, [f"user-{number:06d}" for number in numbers[group::KEY_GROUPS]]) for group in range(KEY_GROUPS)]


def on_a_dictionary(runs: Sequence[tuple[int, Sequence[Any]]]) -> Pass:
    """The same with nothing around it."""
    counts: dict[Any, int] = {}

    def work() -> None:
        for _ in range(TURNS):
            for _group, keys in runs:
                for key in keys:
                    counts[key] = counts.get(key, 0) + 1

    return work


def passes_of(backend: KeyedStateBackend, rows: list[tuple[int, list[Row]]]) -> dict[str, Pass]:
    """A pass of each operation; together they count each key `counted` times."""
    state: Any = backend.value_state(COUNT)
    enter, context = backend.enter, backend.context
    add, get, update, update_with = state.add, state.get, state.update, state.update_with

    def by_add() -> None:
        for _ in range(TURNS):
            for group, keys in rows:
                enter(group)
                for key in keys:
                    context.key = key
                    add(1)

    def one_more(count: int | None) -> int:
        return 1 if count is None else count + 1

    def by_update_with() -> None:
        for _ in range(TURNS):
            for group, keys in rows:
                enter(group)
                for key in keys:
                    context.key = key
                    update_with(one_more)

    def by_get() -> None:
        for _ in range(TURNS):
            for group, keys in rows:
                enter(group)
                for key in keys:
                    context.key = key
                    get()

    def by_update() -> None:
        for number in range(TURNS):
            for group, keys in rows:
                enter(group)
                for key in keys:
                    context.key = key
                    update(number)

    def by_many() -> None:
        for _ in range(TURNS):
            for group, keys in rows:
                add_many(backend, state, ManyKeys(keys, [(group, 0, len(keys))]), 1)

    return dict(zip(OPERATIONS, (by_add, by_update_with, by_get, by_update, by_many), strict=True))


@contextmanager
def backends() -> Iterator[dict[str, KeyedStateBackend]]:
    """One of each, open."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-state-record-")))
        groups = range(KEY_GROUPS)
        opened: dict[str, KeyedStateBackend] = {
            "heap": HeapBackend(groups),
            "lru": LruStateCache(RocksDbBackend(groups, folder / "lru"), max_entries=2 * KEYS),
            "rocksdb": RocksDbBackend(groups, folder / "rocksdb"),
        }
        for backend in opened.values():
            stack.callback(backend.close)
        yield opened


def timed(work: Pass) -> float:
    """Microseconds a record of one pass."""
    started = time.thread_time()
    work()
    return (time.thread_time() - started) / (TURNS * KEYS) * 1e6


def measure(passes: int) -> dict[str, dict[str, list[float]]]:
    """By set-up and operation the microseconds of each pass."""
    runs = words()
    rows: list[tuple[int, list[Row]]] = [(group, [(word,) for word in keys]) for group, keys in runs]
    dictionaries = {"dict_us": on_a_dictionary(rows), "dict_of_texts_us": on_a_dictionary(runs)}
    records = [word for _ in range(TURNS) for _, keys in runs for word in keys]
    found: dict[str, dict[str, list[float]]] = {name: {each: [] for each in OPERATIONS} for name in NAMES}
    found |= {"dictionary": {each: [] for each in dictionaries}, "harness": {"record_us": []}}
    with backends() as opened, Harness(Counts, key=str, key_type=str) as harness:
        work = {name: passes_of(backend, rows) for name, backend in opened.items()}
        gc.collect()
        gc.disable()  # as a state host does
        for number in range(passes + 1):
            for name, backend in opened.items():
                for operation in OPERATIONS:
                    for each, dictionary in dictionaries.items():
                        found["dictionary"][each].append(timed(dictionary))
                    found[name][operation].append(timed(work[name][operation]))
                    backend.commit().release()
                    backend.acknowledge()
            found["harness"]["record_us"].append(timed(lambda: harness.process_many(records)))
            harness.begin_checkpoint().abort()
            if number == 0:
                # What was made and found for the first time.
                found = {name: {each: [] for each in of} for name, of in found.items()}
        gc.enable()
        check(opened, harness.state("count"), passes + 1)
    return found


def check(opened: dict[str, KeyedStateBackend], of_harness: dict[str, int], passes: int) -> None:
    """All was counted: since the last updates, which set what the last `many_us` adds to."""
    for name, backend in opened.items():
        for group in range(KEY_GROUPS):
            assert set(backend.cells(COUNT.name, group).values) == {TURNS - 1 + TURNS}, name
    assert set(of_harness.values()) == {passes * TURNS}
    assert len(of_harness) == KEYS


def spread(values: list[float]) -> list[float]:
    """The quartiles."""
    low, _, high = statistics.quantiles(values, n=4)
    return [round(low, 4), round(high, 4)]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--passes", type=int, default=PASSES)
    passes = parser.parse_args().passes
    found = measure(passes)
    medians = {
        name: {operation: round(statistics.median(times), 4) for operation, times in each.items()}
        for name, each in found.items()
    }
    dict_us = medians["dictionary"]["dict_us"]
    record_us = medians["harness"]["record_us"]
    ratio = {
        name: {
            operation: round(medians[name][operation] / (medians[name]["rmw_us"] if name == "rocksdb" else dict_us), 2)
            for operation in bars
        }
        for name, bars in BARS.items()
    }
    held = {name: {each: ratio[name][each] <= bar for each, bar in bars.items()} for name, bars in BARS.items()}
    result = {
        **{name: medians[name] for name in NAMES},
        "harness_records_per_second": round(1e6 / record_us),
        **medians["dictionary"],
        "ratio": ratio,
        "held": held,
        "spread": {name: {each: spread(times) for each, times in of.items()} for name, of in found.items()},
    }
    if passes < PASSES:
        print(json.dumps(result))
        return
    report(
        "state_record",
        title="One record in keyed state, µs",
        columns=("set-up", "add", "update_with", "get", "update", "add_many, a record", "add ÷ dictionary"),
        rows=[
            *(
                (label, *(medians[name][each] for each in OPERATIONS), medians[name]["rmw_us"] / dict_us)
                for name, label in NAMES.items()
            ),
            ("harness, a record", record_us, "", "", "", "", record_us / dict_us),
            ("bare dictionary", dict_us, "", "", "", "", 1.0),
        ],
        result=result,
        draw=lambda axes: grouped_bars(
            axes,
            ["add", "get", "update", "add_many"],
            {
                NAMES[name]: [medians[name][each] / dict_us for each in ("rmw_us", "get_us", "update_us", "many_us")]
                for name in ("heap", "lru")
            },
            ylabel="times a bare dictionary's read-modify-write",
        ),
    )


if __name__ == "__main__":
    main()
