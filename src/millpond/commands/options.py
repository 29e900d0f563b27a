"""The options that several commands share, and how their results are told.

Progress goes to stderr, results to stdout; with ``--json`` the result is one JSON object.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from millpond.errors import OptionError
from millpond.features import GroupBy, Join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millpond.commands.definitions import Definitions

_PARTITIONS = "spark.sql.shuffle.partitions"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def definitions_argument(command: _Command) -> _Command:
    """The files and modules with the definitions."""
    return click.argument("definitions", nargs=-1, required=True, metavar="DEFINITIONS...")(command)


def target_option(command: _Command) -> _Command:
    """Which of the definitions is meant."""
    return click.option("--name", metavar="NAME", help="The GroupBy or Join; needed if there are several.")(command)


def store_option(command: _Command) -> _Command:
    """The store's URL."""
    return click.option(
        "--store", "store_url", required=True, metavar="URL", help="Where features go: lmdb:///path, redis://host."
    )(command)


def json_option(command: _Command) -> _Command:
    """JSON in place of text."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def session_options(command: _Command) -> _Command:
    """How the Spark session is made."""
    conf = click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the session.")
    master = click.option("--master", metavar="URL", help="Spark's master; that of spark-submit, or local[*].")
    decorated: _Command = conf(master(command))
    return decorated


def spark_options(command: _Command) -> _Command:
    """How the Spark session is made, and what stands for the sources' tables."""
    table = click.option(
        "--table",
        "tables",
        multiple=True,
        metavar="NAME=PATH",
        help="Read the files at PATH for the source's table NAME; may be given several times.",
    )
    decorated: _Command = table(session_options(command))
    return decorated


def chosen_group_by(found: "Definitions", name: str | None) -> GroupBy:
    """The GroupBy of a name; the only one, if no name is given."""
    return _chosen("GroupBy", {group_by.name: group_by for group_by in found.group_bys}, name)


def chosen_target(found: "Definitions", name: str | None) -> GroupBy | Join:
    """The Join or GroupBy of a name; without a name the only Join, or else the only GroupBy."""
    joins: dict[str, GroupBy | Join] = {join.name: join for join in found.joins}
    if name is None and joins:
        return _chosen("Join", joins, None)
    return _chosen("GroupBy or Join", {group_by.name: group_by for group_by in found.group_bys} | joins, name)


_Definition = TypeVar("_Definition")


def _chosen(kind: str, found: Mapping[str, _Definition], name: str | None) -> _Definition:
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is not None and name in found:
        return found[name]
    asked = "give --name" if name is None else f"--name is {name!r}"
    raise OptionError(f"{asked}; expected a {kind} among {sorted(found)}")


def spark_session(command: str, master: str | None, settings: tuple[str, ...]) -> "SparkSession":
    """The session of a command; settings are ``KEY=VALUE``."""
    from millpond.spark import session

    pairs = dict(pair("--conf", setting, "KEY=VALUE") for setting in settings)
    spark = session(f"millpond {command}", master=master, **{key.replace(".", "__"): pairs[key] for key in pairs})
    spark.sparkContext.setLogLevel("ERROR")
    if spark.sparkContext.master.startswith("local") and _PARTITIONS not in pairs:
        # Spark's default of 200 is for clusters: each of them is a state store and a task of every batch.
        spark.conf.set(_PARTITIONS, str(spark.sparkContext.defaultParallelism))
    return spark


def given_tables(spark: "SparkSession", tables: tuple[str, ...], *, streaming: bool = False) -> dict[str, "DataFrame"]:
    """DataFrames by the names of the tables that they stand for; ``tables`` are ``NAME=PATH``."""
    found = dict(pair("--table", table, "NAME=PATH") for table in tables)
    if not streaming:
        return {name: spark.read.load(path) for name, path in found.items()}
    return {name: spark.readStream.schema(spark.read.load(path).schema).load(path) for name, path in found.items()}


def pair(option: str, text: str, expected: str) -> tuple[str, str]:
    """What stands on both sides of the first equals sign. An OptionError says what was expected."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise OptionError(f"{option} {text!r}: expected {expected}")
    return name, value


class TimeOfDay(click.ParamType[int]):
    """A time as milliseconds since the epoch, as a date (midnight UTC), or as an ISO time (UTC without a zone).

    >>> TimeOfDay().convert("1970-01-02", None, None)
    86400000
    """

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read one."""
        if isinstance(value, int):
            return value
        if str(value).isdigit():
            return int(value)
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is no time; write 2026-06-01, 2026-06-01T05:00, or milliseconds since 1970", param, ctx
            )
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000)


def tell(result: Any, *, as_json: bool, text: str) -> None:
    """Print a command's result."""
    click.echo(msgspec.json.encode(result).decode() if as_json else text)
