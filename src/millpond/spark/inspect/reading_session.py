"""A session that can read the state in a query's checkpoint, whatever format of checkpoints the query has.

Spark reads a checkpoint in the format that the *session* is set to (`FORMAT_KEY`), not in the one that was written: in
another one it fails. PySpark's default is format 1, and `millpond.spark.session` sets 2. In format 2 the commit of a
batch has the ids of its state.
"""

from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.errors import CorruptionError, OptionError
from millpond.masking import masked
from millpond.spark.environment.session import FORMAT_KEY, setting


class _Commit(msgspec.Struct):
    """What a query's commit log says of a batch."""

    state_ids: Any = msgspec.field(name="stateUniqueIds", default=None)


def reading_session(spark: SparkSession, location: str) -> SparkSession:
    """A session in the format of this checkpoint: the given one, or a new one with the same other settings.

    Where there is no checkpoint it is the given one: whoever reads then says what is missing.

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
    """The format of the newest commit, which is a line with the log's version and one of JSON; None without commits."""
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
