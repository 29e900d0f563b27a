"""Get a session that can read the state in a query's checkpoint, in either format.

Spark reads a checkpoint in the format that the *session* is set to (`FORMAT_KEY`), and fails if it was written in
another one. PySpark's default is format 1, and `millpond.spark.session` sets 2. The format can be told from the commit
log: in format 2 the commit of a batch has the ids of its state.
"""

from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.errors import CorruptionError, OptionError
from millpond.masking import masked
from millpond.spark.environment.session import FORMAT_KEY, setting


class _Commit(msgspec.Struct):
    """A batch's entry in a query's commit log."""

    state_ids: Any = msgspec.field(name="stateUniqueIds", default=None)


def reading_session(spark: SparkSession, location: str) -> SparkSession:
    """Return a session in the format of this checkpoint: the given one, or a new one with the same other settings.

    Without a checkpoint it is the given one, and the read that follows raises the error.

    Raises:
        CorruptionError: the newest commit cannot be read.
        OptionError: another format is needed, and the session cannot make a new one. Spark Connect of some versions
            cannot.
    """
    found = _format(spark, location)
    if found is None or setting(spark.conf, FORMAT_KEY) == found:
        return spark
    try:
        reading = spark.newSession()
        given = spark.conf.getAll
    except (AttributeError, PySparkException) as error:
        raise OptionError(
            f"the query of {masked(location)} wrote its state under {FORMAT_KEY}={found}, and this "
            "session cannot make another "
            f"one to read it ({error}). Set {FORMAT_KEY} to {found} in this session first."
        ) from error
    for name, value in given.items():
        if reading.conf.isModifiable(name):
            reading.conf.set(name, value)
    reading.conf.set(FORMAT_KEY, found)
    return reading


def _format(spark: SparkSession, location: str) -> str | None:
    """Return the format of the newest commit; None without commits. A commit has a version line and a line of JSON."""
    folder = f"{location.rstrip('/')}/commits"
    try:
        lines = spark.read.text(folder).selectExpr("_metadata.file_name AS name", "value").collect()
    except PySparkException:
        return None
    commits = [int(line.name) for line in lines if line.name.isdecimal()]
    if not commits:
        return None
    newest = str(max(commits))
    texts = [line.value for line in lines if line.name == newest and line.value.startswith("{")]
    try:
        commit = msgspec.json.decode(texts[0], type=_Commit)
    except (IndexError, msgspec.MsgspecError) as error:
        raise CorruptionError(
            f"{folder}/{newest}, which Spark wrote for the last batch, cannot be read: {error}. Restore the checkpoint."
        ) from error
    return "1" if commit.state_ids is None else "2"
