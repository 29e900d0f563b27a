"""What a record in keyed state gains if mypyc compiles its hottest modules: the same source, compiled beside not.

A copy of the package is made outside the tree, and mypyc compiles `MODULES` in it: the methods of value states on the
heap, and the entries of the LRU cache. Then `benchmarks.state_record` runs on the copy and on the tree in turn. What
counts is the ratio of what a record takes. It needs a C compiler and Python's headers.

    .venv/bin/python -m benchmarks.compiled_record
    .venv/bin/python -m benchmarks.compiled_record --rounds 1 --passes 5    # quick: no result is kept
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import millpond
from benchmarks.report import grouped_bars, report

MODULES = ("state/heap/hot_path.py", "state/wrappers/lru/entries.py")
ROUNDS = 5
PASSES = 21
BAR = 1.5
"""How much faster a record must get for a compiled core to pay."""
FIGURES = [(name, each) for name in ("heap", "lru") for each in ("rmw_us", "update_with_us", "get_us", "update_us")]
_BUILD = """
import json, sys
from mypyc.build import mypycify
from setuptools import setup
modules = mypycify(["--ignore-missing-imports", "--follow-imports=silent", *json.loads(sys.argv.pop())], opt_level="3")
setup(name="millpond", packages=[], ext_modules=modules)
"""


def compiled_copy(folder: Path) -> Path:
    """A folder with the package, of which these modules are compiled."""
    shutil.copytree(Path(millpond.__file__).parent, folder / "millpond")
    modules = json.dumps([f"millpond/{module}" for module in MODULES])
    command = [sys.executable, "-c", _BUILD, "build_ext", "--inplace", modules]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    for module in MODULES:
        made = list((folder / "millpond" / module).parent.glob(f"{Path(module).stem}.*.so"))
        assert made, f"{module} was not compiled"
    return folder


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
    with tempfile.TemporaryDirectory(prefix="millpond-compiled-") as folder:
        sources = {"plain": Path(millpond.__file__).parents[1], "compiled": compiled_copy(Path(folder))}
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
        for _ in range(chosen.rounds):
            for name, source in sources.items():
                runs[name].append(record_of(source, chosen.passes))
                print(f"{name}: {runs[name][-1]['heap']}", file=sys.stderr, flush=True)
    medians = {
        name: {f"{where} {each}": statistics.median(run[where][each] for run in of) for where, each in FIGURES}
        for name, of in runs.items()
    }
    gain = {each: round(took / medians["compiled"][each], 2) for each, took in medians["plain"].items()}
    result = {"us": medians, "gain": gain, "pays": gain["heap rmw_us"] >= BAR, "modules": list(MODULES)}
    if chosen.rounds < ROUNDS or chosen.passes < PASSES:
        print(json.dumps(result))
        return
    report(
        "compiled_record",
        title="One record in keyed state, compiled by mypyc or not, µs",
        columns=("operation", "as it is", "compiled", "times faster"),
        rows=[(each, medians["plain"][each], medians["compiled"][each], gain[each]) for each in gain],
        result=result,
        draw=lambda axes: grouped_bars(
            axes, list(gain), {"as it is": [1.0] * len(gain), "compiled": list(gain.values())}
        ),
    )


if __name__ == "__main__":
    main()
