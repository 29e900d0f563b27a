"""What a record in keyed state gains from compiled hot modules: the package as it is, beside that of the wheel.

`benchmarks.state_record` runs on the two in turn. What counts is the ratio of what a record takes. `make compiled`
makes the compiled package; that and the package as it is have to be of the same sources.

    make compiled
    .venv/bin/python -m benchmarks.compiled_record
    .venv/bin/python -m benchmarks.compiled_record --rounds 1 --passes 5    # quick: no result is kept
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.code_tree import check_same_sources
from benchmarks.report import grouped_bars, report

ROOT = Path(__file__).parents[1]
SOURCES = {"plain": ROOT / "src", "compiled": ROOT / "build" / "compiled"}
ROUNDS = 5
PASSES = 21
BAR = 1.5
"""How much faster a record must get for a compiled core to pay."""
OPERATIONS = {
    "rmw_us": "add",
    "update_with_us": "update_with",
    "get_us": "get",
    "update_us": "update",
    "many_us": "add_many",
}
NAMES = {"heap": "heap", "lru": "LRU cache"}


def record_of(source: Path, passes: int) -> dict[str, Any]:
    """What `state_record` finds out of the package in a folder."""
    command = [sys.executable, "-m", "benchmarks.state_record", "--passes", str(passes)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--passes", type=int, default=PASSES)
    chosen = parser.parse_args()
    check_same_sources(SOURCES["compiled"] / "millpond")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SOURCES}
    for _ in range(chosen.rounds):
        for name, source in SOURCES.items():
            runs[name].append(record_of(source, chosen.passes))
            print(f"{name}: {runs[name][-1]['heap']}", file=sys.stderr, flush=True)
    figures = {f"{NAMES[where]}: {label}": (where, each) for where in NAMES for each, label in OPERATIONS.items()}
    medians = {
        name: {label: statistics.median(run[where][each] for run in of) for label, (where, each) in figures.items()}
        for name, of in runs.items()
    }
    gain = {label: round(took / medians["compiled"][label], 2) for label, took in medians["plain"].items()}
    pays = gain["heap: add"] >= BAR and gain["LRU cache: add"] >= BAR
    result = {"us": medians, "gain": gain, "pays": pays}
    if chosen.rounds < ROUNDS or chosen.passes < PASSES:
        print(json.dumps(result))
        return
    report(
        "compiled_record",
        title="One record in keyed state, in Python or compiled, µs",
        columns=("operation", "Python", "compiled", "times faster"),
        rows=[(label, medians["plain"][label], medians["compiled"][label], gain[label]) for label in gain],
        result=result,
        draw=lambda axes: grouped_bars(
            axes, list(gain), {"Python": [1.0] * len(gain), "compiled": list(gain.values())}, ylabel="times faster"
        ),
    )


if __name__ == "__main__":
    main()
