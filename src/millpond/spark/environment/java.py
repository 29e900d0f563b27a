"""Find the Java that Spark runs on, at set-up and when a session starts.

Spark itself takes `JAVA_HOME` or else the first `java` on PATH, whatever its version, and fails late and
obscurely on an old one. This module asks each Java for its version and takes the first that Spark can use.
It looks at `JAVA_HOME`, then at PATH, then where package managers install one.

It imports only the standard library, and nothing of Millpond, because `make setup` runs it as a script
before anything is installed. The script prints the home of the Java found. If there is none, it says on
stderr what was found instead and exits with status 1.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MINIMUM = 17
"""The oldest Java that Spark 4 runs on."""

_USUAL_PLACES = (
    "/usr/lib/jvm/*/bin/java",  # Debian, Ubuntu, Fedora
    "/opt/homebrew/opt/openjdk*/bin/java",  # Homebrew keeps its Javas off PATH
    "/usr/local/opt/openjdk*/bin/java",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
)


@dataclass(frozen=True)
class Java:
    """One installed Java: what to set `JAVA_HOME` to, and its feature release (8, 11, 17, ...)."""

    home: Path
    version: int


def find_java(environ: Mapping[str, str] = os.environ, usual_places: Sequence[str] = _USUAL_PLACES) -> Java:
    """Return the first Java of release 17 or later, in the order JAVA_HOME, PATH, usual places.

    Args:
        environ: the environment variables, of which `JAVA_HOME` and `PATH` are read.
        usual_places: absolute glob patterns of `java` binaries, tried last.

    Raises:
        LookupError: none is new enough; the message lists those that are too old. (A builtin error, because
            nothing of Millpond can be imported here; `session` turns it into a `MissingDependencyError`.)

    >>> find_java(environ={}, usual_places=())
    Traceback (most recent call last):
    LookupError: Spark needs Java 17 or later, found none. Looked at JAVA_HOME, PATH and the usual places.
    """
    too_old = []
    for source, binary in _candidates(environ, usual_places):
        java = _ask(binary)
        if java is None:
            continue
        if java.version >= MINIMUM:
            return java
        too_old.append(f"Java {java.version} at {java.home} ({source})")
    found = f"found only {'; '.join(dict.fromkeys(too_old))}" if too_old else "found none"
    message = f"Spark needs Java {MINIMUM} or later, {found}. Looked at JAVA_HOME, PATH and the usual places."
    raise LookupError(message)


def _candidates(environ: Mapping[str, str], usual_places: Sequence[str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(on_path)
    for pattern in usual_places:
        for binary in sorted(Path("/").glob(pattern.lstrip("/"))):
            yield "usual place", binary


def _ask(binary: Path) -> Java | None:
    """Ask a binary for its home and version. None if it is missing or is no Java, like the stub that macOS has."""
    try:
        answer = subprocess.run(
            [binary, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer.stderr, re.MULTILINE)
    if answer.returncode or not home or not version:
        return None
    return Java(Path(home[1].strip()), int(version[1]))


if __name__ == "__main__":
    try:
        print(find_java().home)  # noqa: T201 - the answer to `make setup`
    except LookupError as error:
        sys.exit(str(error))
