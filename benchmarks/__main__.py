"""Runs every benchmark found beside this file, one after the other (`make bench`).

Each runs in its own process, so that none inherits another's warm caches, Spark session or memory.
All of them run even if one fails; the exit status tells whether any did.
"""

import pkgutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_SHARED = frozenset(
    {
        "__main__",
        "code_tree",
        "database_servers",
        "features_faults",
        "features_ingest",
        "features_stored",
        "features_upload",
        "figures",
        "flip50_limits",
        "flip50_turns",
        "flip50_words",
        "http_load",
        "killed_job",
        "king_report",
        "lookup_memory",
        "lookup_peers",
        "lookup_workers",
        "lookup_world",
        "memory",
        "redis_servers",
        "report",
        "serving_http",
        "serving_world",
        "spark_scala",
    }
)


def names(folder: Path) -> list[str]:
    """The benchmarks in `folder`: its modules, without what they share."""
    found = (module.name for module in pkgutil.iter_modules([str(folder)]))
    return sorted(name for name in found if name not in _SHARED)


def run_all(chosen: Iterable[str]) -> list[str]:
    """Run the benchmarks named; returns those that failed."""
    failed = []
    for name in chosen:
        print(f"\n=== benchmarks.{name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    return failed


if __name__ == "__main__":
    if failures := run_all(names(Path(__file__).parent)):
        sys.exit(f"failed: {', '.join(failures)}")
