"""How the tests start Spark's JVMs: with options for short runs, and with an archive of the classes that Spark loads.

A JVM spends most of the CPU time of its start on finding, parsing and linking classes. The archive holds them as a
JVM has them in memory (class data sharing, JEP 350): a start then takes less than half of that time.

    python -m tests.jvms    makes the archive, where there is none; `make test` runs it

A JVM checks by itself that the archive fits it and its class path, and does without the archive where not.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
"""Beside the Spark whose classes it holds: a new environment has a new archive."""

TYPICAL = "tests/spark/test_examples.py"
"""The archive holds what these tests load: they run PySpark's operators and Millpond's, over files of JSON."""

# No JVM of the tests runs long enough for the second compiler, for threads that collect garbage beside the program,
# or for proofs of the bytecode in Spark's jars to pay. What a JVM says of an archive that does not fit it is no news.
# With one compiler a JVM has 48 MB for compiled code. The session's fills them, and sweeps them all the time.
_FOR_SHORT_RUNS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",
)


def options() -> str:
    """What the tests put into `SPARK_SUBMIT_OPTS`."""
    return " ".join([*_FOR_SHORT_RUNS, *([f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.exists() else [])])


def make_archive() -> None:
    """Run the typical tests in a JVM that writes the archive when it ends."""
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder) / ARCHIVE.name
        # Without capture (-s) the JVM inherits the pipes: reading them to their end waits until it, too, has ended.
        tests = subprocess.run(
            [sys.executable, "-m", "pytest", "-qs", "-n0", TYPICAL],
            env=os.environ | {"SPARK_SUBMIT_OPTS": f"{options()} -XX:ArchiveClassesAtExit={made}"},
            capture_output=True,
            text=True,
            check=False,
        )
        if made.exists():
            made.replace(ARCHIVE)
        else:
            print(f"no archive was made; the tests run without it\n{tests.stdout[-2000:]}{tests.stderr[-2000:]}")


if __name__ == "__main__" and not ARCHIVE.exists():
    print("making an archive of Spark's classes for the tests")
    make_archive()
