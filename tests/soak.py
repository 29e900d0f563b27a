"""Runs the long tests, two parts at a time, and writes what they tried to `docs/explanation/soak.md`.

    python -m tests.soak                         all parts: `make soak`
    python -m tests.soak --only kills -- -x      some parts, with arguments for pytest; the page stays as it is

A test says what it tried by pytest's `record_property`, under one of the names of `COUNTS`. So the page has what ran,
and not what was asked for. It is written only if every part ran and none failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
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

    def command(self, results: Path, more: Sequence[str]) -> list[str]:
        """The command that runs the tests and writes their results to a file."""
        timed = [] if self.minutes is None else ["-p", "tests.soak_time", "--begin-within", str(self.minutes)]
        return [sys.executable, "-m", "pytest", *timed, *self.arguments, f"--junit-xml={results}", *more]


PARTS = {
    "kills": Part(
        "Processes of clusters are killed at random; demos run on every backend and store.",
        ("tests/faults", "tests/end_to_end", "-m", "soak", *_LONG),
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
    "simulation": Part(
        "Histories of simulated hosts, disks and stores are checked for lost and double updates.",
        ("tests/simulation", *_LONG),
        {"MILLPOND_SIMULATIONS": "20000"},
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
        ("tests/state", "tests/cache", "--ignore=tests/state/conformance", "-m", "soak", *_LONG),
    ),
}
"""The parts, those that take longest first."""


@dataclass(frozen=True)
class Done:
    """What one part did.

    Attributes:
        code: the exit code of pytest.
        minutes: how long it took.
        passed: the number of tests that passed.
        counts: what the tests counted, by the names of `COUNTS`.
    """

    code: int
    minutes: float
    passed: int
    counts: Counter[str]


def run(name: str, folder: Path, more: Sequence[str]) -> Done:
    """Run one part. Its output goes to `folder / name.log`."""
    part, results = PARTS[name], folder / f"{name}.xml"
    command = part.command(results, more)
    began = time.monotonic()
    with (folder / f"{name}.log").open("w") as log:
        code = subprocess.call(command, stdout=log, stderr=log, env=os.environ | part.settings, cwd=ROOT)
    minutes = (time.monotonic() - began) / 60
    cases = list(ET.parse(results).iter("testcase")) if results.exists() else []  # noqa: S314 - of pytest
    counts: Counter[str] = Counter()
    for said in (each.attrib for case in cases for each in case.iter("property")):
        if said["name"] in COUNTS:
            counts[said["name"]] += int(said["value"])
    passed = sum(not {child.tag for child in case} & {"failure", "error", "skipped"} for case in cases)
    return Done(code, minutes, passed, counts)


def page(done: dict[str, Done], minutes: float) -> str:
    """The page about a run in which every part succeeded."""
    where = machine()
    total: Counter[str] = sum((each.counts for each in done.values()), Counter())
    heads = ["what runs", "minutes", "tests", *COUNTS]
    rows = [
        [
            PARTS[name].tells,
            f"{each.minutes:.0f}{_limit(PARTS[name])}",
            f"{each.passed:,}",
            *(_number(each.counts[of]) for of in COUNTS),
        ]
        for name, each in done.items()
    ]
    rows.append(
        ["All, two parts at a time", f"{minutes:.0f}", f"{sum(each.passed for each in done.values()):,}"]
        + [_number(total[of]) for of in COUNTS]
    )
    table = "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---", *["---:"] * (len(heads) - 1)], *rows])
    return f"""# Soak

What do the long tests try, beyond what `make test` runs?
[Faults](faults.md) names what may go wrong, and the tests of every run.

`make soak` runs these parts and writes this page if none of them fails.
The table has the last such run, on a machine with {where["cores"]} cores.

- **Kills** are processes that were killed: hosts, workers, executors, drivers and stores.
- **Histories** are runs of simulated hosts, disks and stores, each from a seed of its own.
- **Inputs** are wrong bytes that decoders were given.
- **Tests** are those that passed. Where the table has a limit of minutes, tests are drawn until the time is over.
- **Streams** are random streams and processors whose output and state were compared with PySpark's.

{table}
"""


def _limit(part: Part) -> str:
    return "" if part.minutes is None else f" (limit {part.minutes})"


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


def main(arguments: Sequence[str]) -> int:
    """Run the parts. Return 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(PARTS), action="append", help="a part to run; may be repeated")
    parser.add_argument("--logs", type=Path, help="where the output of each part goes; default: a new folder")
    parser.add_argument("more", nargs="*", help="arguments for pytest, after --")
    given = parser.parse_args(arguments)
    folder = given.logs or Path(tempfile.mkdtemp(prefix="millpond-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    names = given.only or list(PARTS)
    print(f"{len(names)} parts, {AT_ONCE} at a time; their output is in {folder}", flush=True)
    done: dict[str, Done] = {}
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        running = {threads.submit(run, name, folder, given.more): name for name in names}
        for ended in as_completed(running):
            name, result = running[ended], ended.result()
            done[name] = result
            counted = "".join(f", {count:,} {what}" for what, count in sorted(result.counts.items()))
            state = "passed" if result.code == 0 else f"FAILED with code {result.code}, see {folder / name}.log"
            print(f"{name}: {state}; {result.passed:,} tests{counted}; {result.minutes:.1f} min", flush=True)
    failed = [name for name, result in done.items() if result.code]
    if not failed and not given.only and not given.more:
        PAGE.write_text(page({name: done[name] for name in PARTS}, (time.monotonic() - began) / 60))
        print(f"written: {PAGE}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
