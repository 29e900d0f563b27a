"""The checks of `millpond doctor`: whether this machine and a session's settings are fit for Millpond.

Every check yields findings and never raises, so that one broken part does not hide the next. The checks run with the
plain package, without any extra, since they report which extras are missing.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from millpond.errors import DataError, MillpondError, MissingDependencyError, UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Level: TypeAlias = Literal["ok", "warning", "problem"]

NEWEST_PYTHON = (3, 13)
"""The newest Python that Millpond is tested on."""

SMALL_DISK_BYTES = 1 << 30

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_WORKERS_KEY = "spark.pyspark.python"
_OWN_TMPDIR = "make room there, or point TMPDIR at a folder that you can write to"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: what was checked.
        level: `"problem"` if something will fail, `"warning"` if it is slower or untested, else `"ok"`.
        found: what was found.
        fix: how to fix it; empty where there is nothing to fix.
    """

    check: str
    level: Level
    found: str
    fix: str = ""


def findings(settings: Mapping[str, str] | None = None) -> list[Finding]:
    """Return the findings of all checks on this environment, and on a session's settings if they are given.

    Example:
        >>> [finding.check for finding in findings() if finding.check == "Python"]
        ['Python']
    """
    checks: list[Callable[[], Iterator[Finding]]] = [_python, _hot_path, _java, _pyspark, _extras, _folder, _machine]
    found = [finding for check in checks for finding in check()]
    return found if settings is None else [*found, *settings_findings(settings)]


def is_compiled() -> bool:
    """Return whether the hot path of keyed state is compiled, as in the wheels for some platforms."""
    hot_path = Path(__file__).parent / "state" / "heap" / "hot_path"
    return any(hot_path.with_name(hot_path.name + suffix).exists() for suffix in EXTENSION_SUFFIXES)


def settings_findings(settings: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether keyed state runs well with these settings, and with Spark's defaults for all others."""
    if find_spec("pyspark") is None:
        yield Finding("session settings", "warning", "not looked at: PySpark is not installed", _install("spark"))
        return
    from millpond.spark.environment.session import SESSION_SETTINGS

    if _WORKERS_KEY in settings:
        yield _workers_of_settings(settings[_WORKERS_KEY])
    for name, wanted in SESSION_SETTINGS.items():
        value = settings.get(name)
        if value == wanted:
            yield Finding(name, "ok", str(value))
        else:
            level: Level = "problem" if name == _PROVIDER else "warning"
            yield Finding(name, level, "not set" if value is None else value, f"{name} {wanted}")


def session_settings(spark: "SparkSession") -> dict[str, str]:
    """Return the settings of a running session that matter to keyed state, Spark's defaults included."""
    from pyspark.errors import SparkNoSuchElementException

    from millpond.spark.environment.session import SESSION_SETTINGS

    settings = {}
    for name in SESSION_SETTINGS:
        with suppress(SparkNoSuchElementException):
            settings[name] = str(spark.conf.get(name))
    return settings


def read_settings(path: Path) -> dict[str, str]:
    """Read the settings of a file like Spark's `spark-defaults.conf`: a name and a value on each line.

    Raises:
        DataError: it cannot be read, or a line is not a name and a value.
    """
    settings: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"settings file {path}: cannot be read ({error}); give a file like spark-defaults.conf"
        ) from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = re.fullmatch(r"\s*(spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(.*?)\s*", line)
        if parts is None:
            raise DataError(
                f"settings file {path}, line {number}: expected a name that begins with 'spark.' and a value, "
                f"got {line!r}"
            )
        settings[parts[1]] = parts[2]
    return settings


def as_text(found: list[Finding]) -> str:
    """Return the findings as text: one line for each, and a second line with its fix."""
    lines = []
    for finding in found:
        lines.append(f"{finding.level:8} {finding.check}: {finding.found}")
        if finding.fix:
            lines.append(f"         → {finding.fix}")
    return "\n".join(lines)


def as_json(found: list[Finding]) -> str:
    """Return the findings as a JSON list of objects with the fields of `Finding`."""
    return json.dumps([asdict(finding) for finding in found], indent=2)


def _python() -> Iterator[Finding]:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = "{}.{}".format(*NEWEST_PYTHON)
        yield Finding(
            "Python", "warning", found, f"Millpond is tested up to Python {newest}; use that if something fails"
        )
    else:
        yield Finding("Python", "ok", found)


def _hot_path() -> Iterator[Finding]:
    yield Finding("hot path of keyed state", "ok", "compiled" if is_compiled() else "Python")


def _java() -> Iterator[Finding]:
    # Run it as a script, since without PySpark its package cannot be imported.
    script = Path(__file__).parent / "spark" / "environment" / "java.py"
    asked = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True, check=False)
    if asked.returncode:
        yield Finding(
            "Java",
            "problem",
            asked.stderr.strip(),
            "Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; Fedora: sudo dnf install "
            "java-21-openjdk-headless; macOS: brew install openjdk@17; or point JAVA_HOME at one",
        )
        return
    home = Path(asked.stdout.strip())
    set_home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    taken = Path(set_home, "bin", "java") if set_home else on_path and Path(on_path)
    if taken and taken.resolve().is_relative_to(home.resolve()):
        yield Finding("Java", "ok", str(home))
    else:
        others = f"that of JAVA_HOME={set_home}" if set_home else on_path or "a java on PATH"
        yield Finding(
            "Java",
            "warning",
            f"{home}, which only millpond.spark.session() finds: other sessions take {others}",
            f"export JAVA_HOME={home}",
        )


def _pyspark() -> Iterator[Finding]:
    if find_spec("pyspark") is None:
        yield Finding(
            "PySpark", "warning", "not installed; state, lookups and features work without", _install("spark")
        )
        return
    try:
        from millpond.spark.environment import versions

        versions.require_state_packages()
    except MillpondError as error:
        yield Finding("PySpark", "problem", str(error).partition(" Run: ")[0], _install("spark"))
    else:
        yield Finding("PySpark", "ok", version("pyspark"))
        yield _workers(os.environ.get("PYSPARK_PYTHON"), f"export PYSPARK_PYTHON={sys.executable}")


def _workers(chosen: str | None, fix: str, check: str = "Python of workers") -> Finding:
    """Check the interpreter of a local session's workers; None if nobody chose one."""
    from millpond.spark.environment.session import lack_of_workers

    theirs, lack = lack_of_workers(chosen or "python3")
    if not lack:
        return Finding(check, "ok", theirs)
    found = f"{theirs}, and this is {sys.executable}: {lack}"
    if chosen:
        return Finding(check, "problem", found, fix)
    return Finding(check, "warning", f"{found}; millpond.spark.session() takes this one", fix)


def _workers_of_settings(python: str) -> Finding:
    """Check the interpreter that settings name. An executor may have one that this machine does not."""
    if shutil.which(python) is None:
        found = f"{python} is not on this machine"
        fix = 'each executor needs it, with pip install "millpond[spark]" run by it'
        return Finding(_WORKERS_KEY, "warning", found, fix)
    return _workers(python, f"{_WORKERS_KEY} {sys.executable}", _WORKERS_KEY)


def _extras() -> Iterator[Finding]:
    for extra in distribution("millpond").metadata.get_all("Provides-Extra") or []:
        missing = [package for package in _packages_of(extra) if not _is_installed(package)]
        if not missing:
            yield Finding(f"extra {extra}", "ok", "installed")
        else:
            yield Finding(f"extra {extra}", "ok", f"not installed: {', '.join(missing)}", _install(extra))


def _packages_of(extra: str) -> list[str]:
    """Return the packages of an extra that this machine needs."""
    found = []
    for requirement in requires("millpond") or []:
        package, _, marker = requirement.partition(";")
        if re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", marker) and "sys_platform != 'linux'" not in marker:
            found.append(re.split(r"[^\w.-]", package.strip())[0])
    return found


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _folder() -> Iterator[Finding]:
    wanted = os.environ.get("TMPDIR")
    passed_over = _write_error(Path(wanted)) if wanted else None
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:  # also raised where all disks are full
        yield Finding("temporary folder", "problem", str(error.strerror), _OWN_TMPDIR)
        return
    if failed := _write_error(folder):
        yield Finding("temporary folder", "problem", f"{folder} cannot be written: {failed.strerror}", _OWN_TMPDIR)
        return
    own = folder / f"millpond-{os.getuid()}"
    if own.exists() and (own.stat().st_uid != os.getuid() or own.stat().st_mode & 0o077):
        mode = f"belongs to user {own.stat().st_uid} with mode {own.stat().st_mode & 0o777:o}"
        yield Finding("temporary folder", "problem", f"{own} {mode}", f"chmod 700 {own}, or point TMPDIR elsewhere")
    elif distrust := _distrust(folder):
        found, _, fix = distrust.rpartition(". ")
        yield Finding("temporary folder", "problem", found, fix)
    elif passed_over:
        found = f"{folder}, since TMPDIR={wanted} cannot be written: {passed_over.strerror}"
        fix = f"mkdir -p {wanted}" if isinstance(passed_over, FileNotFoundError) else _OWN_TMPDIR
        yield Finding("temporary folder", "warning", found, fix)
    else:
        yield Finding("temporary folder", "ok", str(folder))
    free = shutil.disk_usage(folder).free
    said = f"{free / 1e9:.1f} GB free in {folder}"
    if free < SMALL_DISK_BYTES:
        yield Finding(
            "disk", "warning", said, "batches and state that spill need room: free some, or point TMPDIR elsewhere"
        )
    else:
        yield Finding("disk", "ok", said)


def _write_error(folder: Path) -> OSError | None:
    """Write to a folder, since its permissions do not tell that its disk is full or read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
    except OSError as error:
        return error
    return None


def _distrust(folder: Path) -> str:
    """Return why state hosts do not trust a folder; empty if they do, or if there is no PySpark to run them."""
    try:
        from millpond.spark.environment.folders import check_path
    except MissingDependencyError:
        return ""
    try:
        check_path(folder)
    except UnavailableError as error:
        return str(error)
    return ""


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    said = f"{cores} {'core' if cores == 1 else 'cores'}, {memory / 1e9:.1f} GB of memory"
    if cores == 1:
        yield Finding(
            "machine",
            "warning",
            said,
            "Spark, its Python workers and the state hosts share the one core: use two or more",
        )
    else:
        yield Finding("machine", "ok", said)


def _install(extra: str) -> str:
    return f'pip install "millpond[{extra}]"'
