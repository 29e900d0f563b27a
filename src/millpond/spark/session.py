"""A Spark session with what Millpond needs, and the check of a session it did not make."""

import os
import sys
import warnings
from collections.abc import Mapping

from pyspark.sql import SparkSession

from millpond.errors import MissingDependencyError, OptionError
from millpond.spark.java import find_java

_PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
_FORMAT_KEY = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

SESSION_SETTINGS: Mapping[str, str] = {
    _PROVIDER_KEY: _ROCKSDB_PROVIDER,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    _FORMAT_KEY: "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
}
"""What `session` sets, beside the workers' interpreter.

The RocksDB provider is what Spark's `transformWithState` needs at all; changelog checkpoints keep a
commit as small as the change; format 2 keeps a late task of a lost attempt from overwriting the
winner; large Arrow batches make the packed shuffle cheap.
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
    """Refuse a session in which keyed state would be wrong; warn of one that is only less safe."""
    provider = str(spark.conf.get(_PROVIDER_KEY, ""))
    if provider != _ROCKSDB_PROVIDER:
        message = (
            f"{_PROVIDER_KEY} is {provider!r}; keyed state lives in Spark's RocksDB state store. "
            f"Set it to {_ROCKSDB_PROVIDER!r}, or make the session with millpond.spark.session()."
        )
        raise OptionError(message)
    if str(spark.conf.get(_FORMAT_KEY, "1")) != "2":
        warnings.warn(
            f"{_FORMAT_KEY} is 1: a task of a lost attempt may overwrite what the winner wrote. "
            "Set it to 2 before the query's first start, or use millpond.spark.session().",
            stacklevel=3,
        )
