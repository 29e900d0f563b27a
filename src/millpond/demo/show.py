"""What `millpond demo` does with a run: the table, what to try next, the JSON, the server.

The last step before the reader. Table and advice go to stdout, unless the JSON goes there; progress
goes to stderr.
"""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console

from millpond.demo import answers, job, report
from millpond.demo.feature_store import LMDB
from millpond.demo.job import Run
from millpond.demo.workdir import Asked, refused
from millpond.masking import masked

_BUSIEST = (
    '    PYTHON -c \'import duckdb; print(duckdb.sql("""SELECT tailnum, max(legs_today) legs, avg(ground_minutes) '
    'ground FROM "WORKDIR/aircraft/*.parquet" GROUP BY ALL ORDER BY legs DESC LIMIT 10"""))\''
)


@dataclass(frozen=True)
class Request:
    """What the command line was given; `json_file` is "-" for stdout."""

    events: int | None
    until: str | None
    workdir: Path
    serve: bool
    port: int
    json_file: str | None
    quiet: bool
    backend: str = "heap"
    state_cache: int = 0
    store: str | None = None

    @property
    def asked(self) -> Asked:
        """What makes it this run and not another."""
        store = None if self.store is None else masked(self.store)
        return Asked(self.events, self.until, self.backend, self.state_cache, store)


def show(request: Request) -> bool:
    """Run the demo and show what came of it; whether every checked feature was right.

    Raises:
        MillpondError: see `millpond.demo.job.run`.
    """
    run = job.run(request.asked, request.workdir, quiet=request.quiet, store=request.store)
    out = sys.stderr if request.json_file == "-" else sys.stdout
    console = Console(file=out, quiet=request.quiet, soft_wrap=True)
    report.summary(run.outcome, run.facts, console)
    for line in (*_mismatches(run), *_outputs(request), *_what_next(request)):
        console.print(line, markup=False, highlight=False)
    if request.json_file is not None:
        _write_json(msgspec.json.encode(run.outcome) + b"\n", request.json_file)
    if request.serve:
        answers.serve_until_stopped(run.store, request.port, partial(_say_serving, console, run))
    return run.outcome.mismatches == 0


def _say_serving(console: Console, run: Run, url: str) -> None:
    console.print(f"\nServing at {url} until you press Ctrl-C. Ask, for example:", markup=False, highlight=False)
    if run.example:
        ask = f"  curl -s {url}/v1/fetch/flight -H 'Content-Type: application/json' -d '{run.example}'"
        console.print(ask, markup=False, highlight=False)
    console.print(f"  curl -s {url}/v1/joins", markup=False, highlight=False)


def _mismatches(run: Run) -> Iterator[str]:
    if run.mismatches:
        yield f"\nMismatches, {len(run.mismatches)} of {run.outcome.mismatches}:"
        yield from (f"  {mismatch}" for mismatch in run.mismatches)


def _outputs(request: Request) -> Iterator[str]:
    workdir = request.workdir
    yield "\nOutputs"
    outputs = {
        "summary.png": "throughput and hit rates over time",
        "summary.json": "the result, for programs",
        "aircraft/*.parquet": "each aircraft's day, one row per flight",
        "training/*.parquet": "a training set: the features of each flight, with its label",
        "answers/*/*.parquet": "what the fetcher answered",
    }
    if request.store is None:
        outputs[LMDB] = "the features of routes, aircraft and airports"
    width = max(len(str(workdir / name)) for name in outputs)
    for name, what in outputs.items():
        yield f"  {workdir / name!s:{width}}  {what}"


def _what_next(request: Request) -> Iterator[str]:
    yield "\nTry next"
    if not request.serve:
        limits = request.asked.options
        again = " ".join((f"{_here('millpond')} demo", *limits, "--workdir", str(request.workdir), "--serve"))
        yield f"  ask for features over HTTP (nothing is done twice):\n    {again}"
    yield "  the busiest aircraft, and how long they stood on the ground:"
    yield _BUSIEST.replace("PYTHON", _here("python")).replace("WORKDIR", str(request.workdir))
    yield "  the code of your own job starts like millpond/demo/aircraft_day.py and definitions.py"


def _here(program: str) -> str:
    """A program of this environment as it can be typed: by its name if that finds it, else by its path."""
    own = Path(sys.executable).parent / program
    found = shutil.which(program)
    if found is not None and Path(found) == own:
        return program
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)


def _write_json(content: bytes, file: str) -> None:
    if file == "-":
        sys.stdout.write(content.decode())
        sys.stdout.flush()
        return
    try:
        Path(file).write_bytes(content)
    except OSError as error:
        raise refused(error, Path(file)) from error
