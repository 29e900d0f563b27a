"""The whole demo at full size: how long it takes, and how much memory all of its processes hold.

Runs `millpond demo` as a user would, in an empty workdir, and adds up the memory of the command, its
JVM, Spark's Python workers and the state hosts, twice a second. Shared pages are counted once (PSS).

    .venv/bin/python -m benchmarks.flights_demo
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from matplotlib.axes import Axes

from benchmarks.report import COLOURS, report

HOST = "millpond.spark.runtime.server"
EVERY_SECONDS = 0.5
GIB = 1 << 30


def family(command: psutil.Process) -> list[psutil.Process]:
    """The command, what it started, and the state hosts that work for its JVM."""
    children = [command, *command.children(recursive=True)]
    numbers = {str(each.pid) for each in children}
    hosts = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if HOST in words and words[-1] in numbers and process not in children:
            hosts.append(process)
    return children + hosts


def held_bytes(command: psutil.Process) -> int:
    """Memory of the family now; a process that ends meanwhile holds nothing."""
    held = 0
    try:
        processes = family(command)
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            held += process.memory_full_info().pss
        except psutil.Error:
            continue
    return held


def main() -> None:
    """Run the demo once and report."""
    samples: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="millpond-benchmark-") as folder:
        result = Path(folder) / "result.json"
        options = ["demo", "--workdir", str(Path(folder) / "run"), "--json", str(result), "--quiet"]
        started = time.monotonic()
        millpond = [sys.executable, "-c", "from millpond.cli import main; main()"]
        with subprocess.Popen([*millpond, *options], env=dict(os.environ)) as running:
            command = psutil.Process(running.pid)
            while running.poll() is None:
                samples.append((time.monotonic() - started, held_bytes(command) / GIB))
                try:
                    running.wait(EVERY_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        seconds = time.monotonic() - started
        assert running.returncode == 0, f"the demo ended with {running.returncode}"
        outcome = json.loads(result.read_text())
    peak = max(held for _, held in samples)

    def draw(axes: Axes) -> None:
        axes.plot(*zip(*samples, strict=True), color=COLOURS[0])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds")
        axes.set_ylabel("memory of all processes, GiB")

    report(
        "flights_demo",
        title="The demo at full size: a year of flights through every room",
        columns=("events", "seconds", "peak memory, GiB", "features checked", "mismatches"),
        rows=[
            (
                f"{outcome['events']:,}",
                f"{seconds:.0f}",
                f"{peak:.1f}",
                f"{outcome['features_checked']:,}",
                outcome["mismatches"],
            )
        ],
        result={"seconds": round(seconds, 1), "peak_memory_gib": round(peak, 2), "demo": outcome},
        draw=draw,
    )


if __name__ == "__main__":
    main()
