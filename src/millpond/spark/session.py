"""A Spark session with what Millpond needs, and the check of a session it did not make."""

import os
import re
import shutil
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.conf import RuntimeConfig

from millpond.errors import MissingDependencyError, OptionError
from millpond.spark.java import find_java

_PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
_ARROW_ROWS_KEY = "spark.sql.execution.arrow.maxRecordsPerBatch"
_FEW_ARROW_ROWS = 50_000
_CHANGELOG_KEY = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_FORMAT_KEY = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_UNIX_SOCKETS_KEY = "spark.python.unix.domain.socket.enabled"
_ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

SESSION_SETTINGS: Mapping[str, str] = {
    _PROVIDER_KEY: _ROCKSDB_PROVIDER,
    _CHANGELOG_KEY: "true",
    _FORMAT_KEY: "2",
    _ARROW_ROWS_KEY: "100000",
    _UNIX_SOCKETS_KEY: "true",
}
"""What `session` sets, beside the workers' interpreter.

The RocksDB provider is what Spark's `transformWithState` needs at all; changelog checkpoints keep a
commit as small as the change; format 2 keeps a late task of a lost attempt from overwriting the
winner; large Arrow batches make the packed shuffle cheap. Unix sockets between the JVM and its Python
workers spare every small batch 40 ms a stage: over TCP the first rows wait until the worker's kernel has
acknowledged what went before them.
"""


def session(app_name: str = "millpond", *, master: str | None = None, **settings: str) -> SparkSession:
    """A Spark session with Millpond's settings; `settings` (dots as `__`) are added and win.

    The workers run the driver's interpreter, so a virtual environment need not be activated; Java is
    found where package managers put it, so `JAVA_HOME` need not be set.

    Raises:
        MissingDependencyError: there is no Java that Spark can use.
    """
    builder = SparkSession.Builder().appName(app_name)
    if master is not None:
        builder = builder.master(master)
    chosen = dict(SESSION_SETTINGS)
    # Spark reads the workers' interpreter from the environment alone; a deliberate choice of the user's stays.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = _java_home()
    chosen |= {name.replace("__", "."): value for name, value in settings.items()}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


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


def check_session(spark: SparkSession) -> None:
    """Refuse a session in which keyed state would be wrong; warn once of what is only slower or less safe.

    Raises:
        OptionError: the state store is not RocksDB's, or a local session's workers run another Python.
    """
    provider = str(spark.conf.get(_PROVIDER_KEY, ""))
    if provider != _ROCKSDB_PROVIDER:
        raise OptionError(
            f"{_PROVIDER_KEY} is {provider!r}; keyed state lives in Spark's RocksDB state store. "
            f"Set it to {_ROCKSDB_PROVIDER!r}, or make the session with millpond.spark.session()."
        )
    _check_interpreter(spark)
    concerns = [
        f"{key} is not {wanted}: {concern}"
        for key, (wanted, concern) in _CONCERNS.items()
        if str(spark.conf.get(key, "")) != wanted
    ]
    if 0 < int(str(spark.conf.get(_ARROW_ROWS_KEY))) < _FEW_ARROW_ROWS:
        concerns.append(f"{_ARROW_ROWS_KEY} is below {_FEW_ARROW_ROWS}: rows cross the shuffle in many small blobs")
    if concerns:
        warnings.warn(
            f"{'; '.join(concerns)}. Set it before the query's first start, or use millpond.spark.session().",
            stacklevel=3,
        )


_CONCERNS = {
    _FORMAT_KEY: ("2", "a task of a lost attempt may overwrite what the winner wrote"),
    _CHANGELOG_KEY: ("true", "every commit uploads whole RocksDB files"),
}


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a session of Spark Connect: the driver, its JVM and its accumulators are elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def hosts_per_executor(conf: RuntimeConfig) -> int:
    """How many state hosts an executor has: one a core. 0 where only the executor can tell how many those are."""
    master = str(conf.get("spark.master", "") or "")
    threads = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", master)
    if threads:
        return 0 if threads[1] == "*" else int(threads[1] or 1)
    cores = str(conf.get("spark.executor.cores", "") or "")
    if cores:
        return int(cores)
    # A standalone worker gives an executor all its cores, a cluster one.
    cluster = re.fullmatch(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,.*\]", master)
    if cluster:
        return int(cluster[1])
    return 0 if master.startswith("spark://") else 1


def _check_interpreter(spark: SparkSession) -> None:
    """Without `PYSPARK_PYTHON` the workers run the `python3` on PATH, which knows nothing of a virtual environment."""
    if not str(spark.conf.get("spark.master", "")).startswith("local") or is_connect(spark):
        return
    theirs = shutil.which(spark.sparkContext.pythonExec)
    if theirs is None or Path(theirs).parent.resolve() != Path(sys.executable).parent.resolve():
        raise OptionError(
            f"Spark's Python workers run {theirs or spark.sparkContext.pythonExec}, this program {sys.executable}: "
            "they would not find the same packages. Set the environment variable PYSPARK_PYTHON to sys.executable "
            "before the session is made, or make it with millpond.spark.session()."
        )
