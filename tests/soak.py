"""Runs the long tests, two parts at a time, and writes what they tried to `docs/explanation/soak.md`.

    python -m tests.soak                      all parts: `make soak`
    python -m tests.soak --logs FOLDER        the same; parts that have passed in this folder are not run again
    python -m tests.soak --only kills         some parts

A test says what it tried by pytest's `record_property`, under one of the names of `COUNTS`. So the page has what ran,
and not what was asked for. It is written if no part failed, unless `--only` has a folder of its own. A part that was
not run has no figures there.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.report import machine

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "soak.md"

AT_ONCE = 2
"""How many parts run at the same time."""

COUNTS = ("kills", "histories", "inputs", "streams")
"""What the tests count: killed processes, simulated histories, inputs of decoders, streams compared with PySpark."""

_LONG = ("--timeout=0", "-o", "faulthandler_timeout=0")
_SOAK = "--hypothesis-profile=soak"
_ALL = "soak or not soak"
_SINGLE = ("tests/state", "tests/cache", "tests/lookup", "tests/serving")


@dataclass(frozen=True)
class Part:
    """Long tests that run in one process.

    Attributes:
        tells: what the tests do, as the page has it.
        arguments: for pytest.
        settings: environment variables.
        minutes: after which no further test begins; None if all shall run. The tests are drawn in another order each
            time (`soak_time`).
    """

    tells: str
    arguments: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    minutes: int | None = None

    def command(self, results: Path) -> list[str]:
        """The command that runs the tests and writes their results to a file."""
        timed = [] if self.minutes is None else ["-p", "tests.soak_time", "--begin-within", str(self.minutes)]
        return [sys.executable, "-m", "pytest", *timed, *self.arguments, f"--junit-xml={results}"]


PARTS = {
    "kills": Part(
        "Processes of clusters are killed at random; demos run on every backend and store.",
        ("tests/faults", "tests/end_to_end", "-m", "soak", *_LONG),
        minutes=60,
    ),
    "simulation": Part(
        "Histories of simulated hosts, disks and stores are checked for lost and double updates.",
        ("tests/simulation", *_LONG),
        {"MILLPOND_SIMULATIONS": "20000"},
    ),
    "machines": Part(
        "Random calls of every backend and wrapper are compared with plain dictionaries.",
        ("tests/state", "-k", "runTest", _SOAK, *_LONG),
        minutes=15,
    ),
    "equality": Part(
        "Random features are computed online, offline and by brute force.",
        ("tests/features/equality", "tests/features/test_decoders.py", _SOAK, *_LONG),
        minutes=15,
    ),
    "equivalence": Part(
        "Random processors and streams run under Millpond and under PySpark.",
        ("tests/spark/test_equivalence.py", "-m", _ALL, *_LONG),
        {"MILLPOND_EQUIVALENCE_STREAMS": "30"},
        minutes=15,
    ),
    "fuzz": Part(
        "Every decoder gets wrong bytes.",
        ("tests/fuzz", *_LONG),
        {"MILLPOND_FUZZ_INPUTS": "100000"},
    ),
    "spark": Part(
        "PySpark's own operator is held to the tests that describe its behaviour.",
        ("tests/spark", "-m", "soak", "--deselect", "tests/spark/test_equivalence.py", *_LONG),
    ),
    "conformance": Part(
        "Every behaviour of state runs on every backend with every wrapper.", ("tests/state/conformance", "-m", _ALL)
    ),
    "single": Part(
        "Long tests of single backends and caches run.",
        (*_SINGLE, "--ignore=tests/state/conformance", "-m", "soak", *_LONG),
    ),
}
"""The parts, those that take longest first."""


@dataclass(frozen=True)
class Done:
    """What one part did.

    Attributes:
        minutes: how long it took.
        passed: the number of tests that passed.
        counts: what the tests counted, by the names of `COUNTS`.
    """

    minutes: float
    passed: int
    counts: Counter[str]


def run(name: str, folder: Path) -> int:
    """Run one part. Return the exit code of pytest.

    Its output goes to `name.log`, and its results to `name.xml` if it passed.
    """
    part, results = PARTS[name], folder / f"{name}.unfinished.xml"
    with (folder / f"{name}.log").open("w") as log:
        code = subprocess.call(part.command(results), stdout=log, stderr=log, env=os.environ | part.settings, cwd=ROOT)
    if code == 0:
        results.rename(folder / f"{name}.xml")
    return code


def read(results: Path) -> Done:
    """Return what a part did that passed."""
    (suite,) = ET.parse(results).iter("testsuite")  # noqa: S314 - pytest wrote it
    counts: Counter[str] = Counter()
    for said in (each.attrib for each in suite.iter("property")):
        if said["name"] in COUNTS:
            counts[said["name"]] += int(said["value"])
    return Done(float(suite.attrib["time"]) / 60, int(suite.attrib["tests"]) - int(suite.attrib["skipped"]), counts)


def page(done: dict[str, Done]) -> str:
    """The page about parts that passed."""
    total: Counter[str] = sum((each.counts for each in done.values()), Counter())
    heads = ["what runs", "minutes", "tests", *COUNTS]
    rows = [
        _row(part.tells, f"{done[name].minutes:.0f}{_limit(part)}", done[name])
        if name in done
        else [part.tells, "not run", *[""] * (len(heads) - 2)]
        for name, part in PARTS.items()
    ]
    passed = sum(each.passed for each in done.values())
    rows.append(_row("All", f"{sum(each.minutes for each in done.values()):.0f}", Done(0, passed, total)))
    table = "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---", *["---:"] * (len(heads) - 1)], *rows])
    return f"""# Soak

What do the long tests try, beyond what `make test` runs?
[Faults](faults.md) names what may go wrong, and the tests of every run.

`make soak` runs these parts, two at a time, and writes this page once all of them have passed.
After a failure is mended, `--logs` runs the parts that have not passed yet.
The table has the last run of each part, on a machine with {machine()["cores"]} cores.

- **Minutes** of a part may be limited.
  Its tests run in a random order then, until the time is over.
- **Kills** are processes that were killed: hosts, workers, executors, drivers and stores.
- **Histories** are runs of simulated hosts, disks and stores, each from a seed of its own.
- **Inputs** are wrong bytes that decoders were given.
- **Streams** are random streams and processors whose output and state were compared with PySpark's.

{table}
"""


def _row(tells: str, minutes: str, done: Done) -> list[str]:
    return [tells, minutes, f"{done.passed:,}", *(_number(done.counts[of]) for of in COUNTS)]


def _limit(part: Part) -> str:
    return "" if part.minutes is None else f" (limit {part.minutes})"


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


def main(arguments: Sequence[str]) -> int:
    """Run the parts. Return 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(PARTS), action="append", help="a part to run; may be repeated")
    parser.add_argument("--logs", type=Path, help="where output and results go; default: a new folder")
    given = parser.parse_args(arguments)
    folder = given.logs or Path(tempfile.mkdtemp(prefix="millpond-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in given.only or PARTS if not (folder / f"{name}.xml").exists()]
    print(f"{len(names)} parts, {AT_ONCE} at a time; their output is in {folder}", flush=True)
    failed = False
    with ThreadPoolExecutor(AT_ONCE) as threads:
        running = {threads.submit(run, name, folder): name for name in names}
        for ended in as_completed(running):
            name, code = running[ended], ended.result()
            if code:
                failed = True
                print(f"{name}: FAILED with code {code}, see {folder / name}.log", flush=True)
                continue
            done = read(folder / f"{name}.xml")
            counted = "".join(f", {count:,} {what}" for what, count in sorted(done.counts.items()))
            print(f"{name}: passed; {done.passed:,} tests{counted}; {done.minutes:.1f} min", flush=True)
    if not failed and (given.logs or not given.only):
        passed = {name: folder / f"{name}.xml" for name in PARTS}
        PAGE.write_text(page({name: read(results) for name, results in passed.items() if results.exists()}))
        print(f"written: {PAGE}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
