"""Make a Spark session with the settings that Millpond needs, and check a session that it did not make."""

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from weakref import WeakSet

from pyspark.errors import SparkNoSuchElementException
from pyspark.sql import SparkSession
from pyspark.sql.conf import RuntimeConfig

from millpond.errors import MissingDependencyError, OptionError
from millpond.spark.environment.java import find_java

_PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
_ARROW_BYTES_KEY = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = str((1 << 31) - 1)
_CHANGELOG_KEY = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
FORMAT_KEY = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_UNIX_SOCKETS_KEY = "spark.python.unix.domain.socket.enabled"
_ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

SESSION_SETTINGS: Mapping[str, str] = {
    _PROVIDER_KEY: _ROCKSDB_PROVIDER,
    _CHANGELOG_KEY: "true",
    FORMAT_KEY: "2",
    _ARROW_BYTES_KEY: _NO_LIMIT,
    _UNIX_SOCKETS_KEY: "true",
}
"""What `session` sets, beside the workers' interpreter.

- Spark's `transformWithState` needs the RocksDB provider.
- Changelog checkpoints keep a commit as small as the change.
- Format 2 keeps a late task of a lost attempt from overwriting the winner.
- Without a limit of bytes, an Arrow batch ends after 10,000 rows. With one, Spark computes the size of the batch anew
  after each row.
- Unix sockets between the JVM and its Python workers save every small batch 40 ms a stage. Over TCP the first
  rows wait until the worker's kernel has acknowledged the bytes before them.
"""


def session(app_name: str = "millpond", *, master: str | None = None, **settings: str) -> SparkSession:
    """Make a Spark session with Millpond's settings. `settings`, with `__` for each dot, are added and override them.

    The workers run the driver's interpreter, so a virtual environment need not be activated. Java is found
    where package managers install it, so `JAVA_HOME` need not be set.

    Raises:
        OptionError: the name of a setting has no dot. Spark would ignore it.
        MissingDependencyError: there is no Java that Spark can use.
    """
    given = {name.replace("__", "."): value for name, value in settings.items()}
    for name in given:
        if "." not in name:
            written = f"{name.replace('_', '__')}=..."
            raise OptionError(f"session() got the setting {name!r}; write each dot of its name as __, as in {written}")
    builder = SparkSession.Builder().appName(app_name)
    if master is not None:
        builder = builder.master(master)
    chosen = dict(SESSION_SETTINGS)
    # Spark reads the workers' interpreter from the environment only. The user's choice is kept.
    os.environ.setdefault("PYSPARK_PYTHON", _worker_python(master or given.get("spark.master")))
    os.environ["JAVA_HOME"] = _java_home()
    chosen |= given
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _worker_python(master: str | None) -> str:
    """Return this interpreter, or for a local session the script that starts it with the installed PySpark.

    The script is in the wheel, and installers put it beside the interpreter of an environment. The machines of a
    cluster may have the interpreter at that path, and not the script.
    """
    script = Path(sys.executable).with_name("millpond-python")
    is_local = not _MASTER_ELSEWHERE & os.environ.keys() if master is None else master.startswith("local")
    return str(script) if is_local and os.access(script, os.X_OK) else sys.executable


_MASTER_ELSEWHERE = {"PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"}
"""Variables with which a session that names no master may be of a cluster: spark-submit's, and of configurations."""


def _java_home() -> str:
    try:
        return str(find_java().home)
    except LookupError as error:
        message = (
            f"{error} Install one (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; "
            "Fedora: sudo dnf install java-21-openjdk-headless; macOS: brew install openjdk@17), "
            "or point JAVA_HOME at one."
        )
        raise MissingDependencyError(message) from error


def check_session(spark: SparkSession, *, streaming: bool) -> None:
    """Refuse a session in which keyed state cannot run. Warn, once a session, of settings that cost speed or safety.

    The warning names the line outside of Millpond that led here.

    Args:
        spark: the session of the data.
        streaming: whether the data is a stream. A batch job keeps its state in RocksDB whatever the session says.

    Raises:
        OptionError: a stream's state store is not RocksDB's, or a local session's workers run a Python that cannot
            run Millpond.
    """
    provider = setting(spark.conf, _PROVIDER_KEY)
    if streaming and provider != _ROCKSDB_PROVIDER:
        raise OptionError(
            f"{_PROVIDER_KEY} is {provider!r}; keyed state lives in Spark's RocksDB state store. "
            f"Set it to {_ROCKSDB_PROVIDER!r}, or make the session with millpond.spark.session()."
        )
    _check_interpreter(spark)
    if spark in _warned:
        return
    _warned.add(spark)
    concerns = {key: concern for key, (fine, concern) in _CONCERNS.items() if not fine(setting(spark.conf, key))}
    if concerns:
        warnings.warn(_recommendation(concerns), stacklevel=_users_stacklevel())


_warned: WeakSet[SparkSession] = WeakSet()
"""The sessions whose settings were checked, so that each warns once at most."""

_CONCERNS: dict[str, tuple[Callable[[str], bool], str]] = {
    FORMAT_KEY: (lambda value: value != "1", "a task of a lost attempt may overwrite what the winner wrote"),
    _CHANGELOG_KEY: (lambda value: value.lower() == "true", "every commit uploads whole RocksDB files"),
    _ARROW_BYTES_KEY: (lambda value: value == _NO_LIMIT, "Spark measures the Arrow batch after each row"),
    _UNIX_SOCKETS_KEY: (lambda value: value.lower() == "true", "each stage in Python begins 40 ms late"),
}
"""Settings that are not needed for correctness: a test of the value, and what a bad value does to a query."""


def _recommendation(concerns: Mapping[str, str]) -> str:
    lines = [
        f'    .config("{key}", "{value}")' + (f"  # else {concerns[key]}" if key in concerns else "")
        for key, value in SESSION_SETTINGS.items()
    ]
    advice = (
        "keyed() runs on this Spark session, but slower or less safely than it could. Make the session with "
        "millpond.spark.session(), or with these settings, before the query's first start:"
    )
    return "\n".join([advice, "", "spark = (", "    SparkSession.builder", *lines, "    .getOrCreate()", ")"])


def _users_stacklevel() -> int:
    """Return the `stacklevel` of the first frame outside Millpond, for the caller's `warnings.warn`."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - `skip_file_prefixes` came with Python 3.12
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "millpond":
        level, frame = level + 1, frame.f_back
    return level


def setting(conf: RuntimeConfig, key: str) -> str:
    """Return a setting's value, or Spark's default; empty where there is neither.

    Spark checks a caller's default against the key's type, so an empty default cannot be passed to it.
    """
    try:
        value = conf.get(key)
    except SparkNoSuchElementException:
        return ""
    return "" if value is None else str(value)


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a session of Spark Connect, whose driver, JVM and accumulators are in another process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def hosts_per_executor(conf: RuntimeConfig) -> int:
    """Return how many state hosts an executor has: one for each core. 0 where only the executor knows its cores."""
    master = setting(conf, "spark.master")
    threads = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", master)
    if threads:
        return 0 if threads[1] == "*" else int(threads[1] or 1)
    cores = setting(conf, "spark.executor.cores")
    if cores:
        return int(cores)
    # A standalone worker gives an executor all its cores; cluster managers give one.
    cluster = re.fullmatch(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,.*\]", master)
    if cluster:
        return int(cluster[1])
    return 0 if master.startswith("spark://") else 1


def _check_interpreter(spark: SparkSession) -> None:
    """Raise an error if the workers' Python cannot run Millpond.

    Without `PYSPARK_PYTHON` they run the `python3` on PATH, which may be outside the virtual environment.
    """
    if not setting(spark.conf, "spark.master").startswith("local") or is_connect(spark):
        return
    theirs, lack = lack_of_workers(spark.sparkContext.pythonExec)
    if lack:
        raise OptionError(
            f"Spark's Python workers run {theirs}, this program {sys.executable}: {lack}. "
            f"Run this before the session is made: export PYSPARK_PYTHON={sys.executable}"
        )


def lack_of_workers(python: str) -> tuple[str, str]:
    """Return where a Python of workers is, and why it cannot run what this program plans; empty if it can."""
    theirs = shutil.which(python)
    if theirs is None:
        return python, "it is not there"
    same = Path(theirs).parent.resolve() == Path(sys.executable).parent.resolve()
    return theirs, "" if same else _lack_of(theirs)


@lru_cache
def _lack_of(interpreter: str) -> str:
    """Return why another Python cannot run what this one plans; empty if no reason was found."""
    version = "{}.{}".format(*sys.version_info[:2])
    # Millpond itself is not in the check: it may be shipped with the application, as a zip.
    asked = "import sys, msgspec, numpy, pyarrow; print('{}.{}'.format(*sys.version_info[:2]))"
    told = subprocess.run([interpreter, "-c", asked], capture_output=True, text=True, check=False)
    if told.returncode:
        return f"there {told.stderr.strip().rpartition(chr(10))[2] or 'it does not start'}"
    found = told.stdout.strip()
    return "" if found == version else f"that is Python {found}, and this one is {version}"
