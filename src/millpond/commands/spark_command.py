"""The parts that commands on Spark share: options, the session, and files in place of tables.

A command declares only its own options. Its first argument is a `Given`, which has the shared ones.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millpond.commands.definitions import Definitions, load_definitions
from millpond.commands.options import definitions_argument, json_option, quiet_option, tell
from millpond.commands.spark_waits import spark_wait
from millpond.commands.waiting import Wait, Waiting
from millpond.errors import DataError, OptionError
from millpond.features import GroupBy, Join
from millpond.suggestions import hint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS = "spark.sql.shuffle.partitions"
_MASTER = click.option("--master", metavar="URL", help="Spark's master; by default that of spark-submit, or local[*].")
_CONF = click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the session.")
_SHARED = (
    definitions_argument,
    click.option("--name", metavar="NAME", help="The name of the definition to use; required if there are several."),
    _MASTER,
    _CONF,
    click.option(
        "--table",
        "tables",
        multiple=True,
        metavar="NAME=PATH",
        help="Read the files at PATH as the source's table NAME; can be repeated.",
    ),
    json_option,
    quiet_option,
)

_Definition = TypeVar("_Definition")


@dataclass(frozen=True, slots=True)
class Given:
    """The options and arguments that every command on Spark has.

    Args:
        definitions: the definitions in the given files and modules.
        name: the name of the definition to use; None if it was not given.
        master: Spark's master; None means that of spark-submit, or all local cores.
        settings: the settings of the session, by key.
        paths: the files to read in place of a source's table, by the table's name.
        as_json: whether to print the result as JSON.
        quiet: whether to show no progress.
    """

    definitions: Definitions
    name: str | None
    master: str | None
    settings: Mapping[str, str]
    paths: Mapping[str, str]
    as_json: bool
    quiet: bool

    @property
    def group_by(self) -> GroupBy:
        """The GroupBy of the given name; without a name, the only GroupBy."""
        return _chosen("GroupBy", {one.name: one for one in self.definitions.group_bys}, self.name)

    @property
    def target(self) -> GroupBy | Join:
        """The Join or GroupBy of the given name; without a name, the only Join, or else the only GroupBy."""
        joins: dict[str, GroupBy | Join] = {join.name: join for join in self.definitions.joins}
        if self.name is None and joins:
            return _chosen("Join", joins, None)
        return _chosen("GroupBy or Join", {one.name: one for one in self.definitions.group_bys} | joins, self.name)

    @property
    def has_local_paths(self) -> bool:
        """Whether a path without a scheme is surely one of this machine: nothing names another file system for it."""
        elsewhere = "spark.hadoop.fs.defaultFS" in self.settings or "HADOOP_CONF_DIR" in os.environ
        return not elsewhere and (self.master is None or self.master.startswith("local"))

    @contextmanager
    def session(self, command: str, doing: str) -> Iterator["SparkSession"]:
        """Make the session of a command and stop it at the end. Meanwhile, show what Spark waits for."""
        if not self.quiet:
            click.echo(doing, err=True)
        spark = spark_session(command, self.master, self.settings, quiet=self.quiet)
        try:
            with Waiting(lambda: spark_wait(spark), quiet=self.quiet):
                yield spark
        finally:
            spark.stop()

    def tables(self, spark: "SparkSession", *, streaming: bool = False) -> dict[str, "DataFrame"]:
        """Return DataFrames of the files, by the names of the tables that they replace."""
        found = {name: read_files(spark, "--table", path) for name, path in self.paths.items()}
        if not streaming:
            return found
        return {name: spark.readStream.schema(found[name].schema).load(path) for name, path in self.paths.items()}

    def tell(self, result: Any, text: str) -> None:
        """Print the result, as JSON or as text."""
        tell(result, as_json=self.as_json, text=text)


def on_spark(command: Callable[..., None]) -> Callable[..., None]:
    """Add the shared options to a command, and pass them to it as a `Given`."""

    @functools.wraps(command)
    def run(
        *,
        definitions: tuple[str, ...],
        name: str | None,
        master: str | None,
        settings: tuple[str, ...],
        tables: tuple[str, ...],
        as_json: bool,
        quiet: bool,
        **own: Any,
    ) -> None:
        of_session = session_settings(settings)
        paths = dict(pair("--table", table, "NAME=PATH") for table in tables)
        found = load_definitions(definitions)
        _check_tables(found, paths)
        command(Given(found, name, master, of_session, paths, as_json, quiet), **own)

    decorated: Callable[..., None] = run
    for option in reversed(_SHARED):
        decorated = option(decorated)
    return decorated


def session_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the Spark session to a command."""
    return _MASTER(_CONF(command))


def session_settings(settings: tuple[str, ...]) -> dict[str, str]:
    """Return the settings of the option `--conf`, by key."""
    return dict(pair("--conf", setting, "KEY=VALUE") for setting in settings)


def spark_session(
    command: str, master: str | None, settings: Mapping[str, str], *, quiet: bool = False
) -> "SparkSession":
    """Make the session of a command."""
    from millpond.spark import session

    given = {key.replace(".", "__"): value for key, value in settings.items()}
    # Spark's own progress bar would overwrite ours.
    given.setdefault("spark__ui__showConsoleProgress", "false")
    with Waiting(lambda: Wait("starting Spark"), quiet=quiet):
        spark = session(f"millpond {command}", master=master, **given)
    spark.sparkContext.setLogLevel("ERROR")
    if spark.sparkContext.master.startswith("local") and _PARTITIONS not in settings:
        # Spark's default of 200 is meant for clusters: each partition is a state store, and a task of every batch.
        spark.conf.set(_PARTITIONS, str(spark.sparkContext.defaultParallelism))
    return spark


def store_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option of the store's URL to a command."""
    return click.option(
        "--store",
        "store_url",
        required=True,
        envvar="MILLPOND_STORE",
        show_envvar=True,
        metavar="URL",
        help="The store of the features: lmdb:///path, redis://host. Put a URL with a password into the environment.",
    )(command)


def read_files(spark: "SparkSession", option: str, path: str) -> "DataFrame":
    """Read the files at a path.

    Raises:
        DataError: Spark cannot read them. The message names the option.
    """
    from pyspark.errors import AnalysisException

    try:
        return spark.read.load(path)
    except AnalysisException as cause:
        reason = str(cause).partition("\n")[0]
        raise DataError(
            f"{option} {path!r}: Spark cannot read it; give a folder or file of Parquet: {reason}"
        ) from cause


def _check_tables(definitions: Definitions, paths: Mapping[str, str]) -> None:
    """Raise if a table that is replaced by files is read by no definition: its name is misspelled."""
    known = sorted(definitions.tables)
    for name, path in paths.items():
        if name not in known:
            raise OptionError(f"--table {name}={path}: no source reads a table {name!r}; {hint(name, known)}")


def _chosen(kind: str, found: Mapping[str, _Definition], name: str | None) -> _Definition:
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is not None and name in found:
        return found[name]
    asked = "give --name" if name is None else f"--name is {name!r}"
    raise OptionError(f"{asked}; expected a {kind} among {sorted(found)}")


def pair(option: str, text: str, expected: str) -> tuple[str, str]:
    """Split a text at its first equals sign. An `OptionError` says what was expected."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise OptionError(f"{option} {text!r}: expected {expected}")
    return name, value
