"""`millpond state`: shows, compares, saves and imports the stored state of a query or a harness.

The commands call the same functions that Python programs use: `read_state`, `savepoint`, `import_state` and
`StateReader`.
"""

import sys
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

import click

from millpond.commands.options import json_option, quiet_option, tell
from millpond.commands.spark_command import pair, session_options, session_settings, spark_session
from millpond.commands.spark_waits import spark_wait
from millpond.commands.waiting import Wait, Waiting
from millpond.errors import OptionError
from millpond.masking import masked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond.state.checkpoint import Savepoint
    from millpond.state.checkpoint.stored_state import Rows, StoredState

_checkpoint_argument = click.argument("checkpoint", metavar="CHECKPOINT")
_state_argument = click.argument("state_name", metavar="[STATE]", required=False)
_timers_option = click.option("--timers", is_flag=True, help="Show the timers instead of a state.")
_operator_option = click.option(
    "--operator", type=int, metavar="ID", help="The operator; required if there are several."
)
_version_option = click.option("--version", type=int, metavar="N", help="The version; by default the newest.")
_limit_option = click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Rows to print; 0 prints all."
)
_seal_option = click.option(
    "--seal",
    type=click.File("rb"),
    metavar="FILE",
    help="A file with the key that CHECKPOINT is sealed with.",
)
_parquet_option = click.option(
    "--parquet", metavar="PATH", help="Write all rows to this new path instead of printing them."
)


@click.group()
def state() -> None:
    """List, show, compare, save and import stored state.

    CHECKPOINT is a query's checkpointLocation, the checkpoints of a harness, or a savepoint.
    """


@state.command("ls")
@_checkpoint_argument
@_seal_option
@session_options
@json_option
@quiet_option
def list_states(
    *,
    checkpoint: str,
    seal: BinaryIO | None,
    master: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """List the operators and states in CHECKPOINT."""
    with _Session(f"reading {masked(checkpoint)}", master, settings, quiet=quiet) as session:
        records = _stored(checkpoint, session, seal).states()
    _print_rows(records, as_json=as_json)


@state.command(short_help="Show the contents of STATE in CHECKPOINT.")
@_checkpoint_argument
@_state_argument
@_timers_option
@_operator_option
@_version_option
@_limit_option
@_parquet_option
@_seal_option
@session_options
@json_option
@quiet_option
def show(
    *,
    checkpoint: str,
    state_name: str | None,
    timers: bool,
    operator: int | None,
    version: int | None,
    limit: int,
    parquet: str | None,
    seal: BinaryIO | None,
    master: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Show the contents of STATE in CHECKPOINT.

    Of a query the columns are those of `read_state`, with a row for each value, element or entry. Of a harness's
    checkpoints and of a savepoint they are those of `StateReader`, with a row for each value, list or entry.
    """
    from millpond.state.checkpoint.stored_state import Asked

    asked = Asked(_chosen(state_name, timers=timers), operator, version)
    with _Session(f"reading {masked(checkpoint)}", master, settings, quiet=quiet) as session:
        found = _found(_stored(checkpoint, session, seal).rows(asked), limit, parquet)
    found.tell(as_json=as_json)


@state.command(short_help="Show what changed in STATE of CHECKPOINT since a version.")
@_checkpoint_argument
@_state_argument
@_timers_option
@click.option("--since", type=int, required=True, metavar="N", help="The earlier version.")
@_operator_option
@_version_option
@_limit_option
@_parquet_option
@_seal_option
@session_options
@json_option
@quiet_option
def diff(
    *,
    checkpoint: str,
    state_name: str | None,
    timers: bool,
    since: int,
    operator: int | None,
    version: int | None,
    limit: int,
    parquet: str | None,
    seal: BinaryIO | None,
    master: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what changed in STATE of CHECKPOINT since a version; the exit code is 1 if anything did."""
    from millpond.state.checkpoint.stored_state import Asked

    asked = Asked(_chosen(state_name, timers=timers), operator, version, since)
    with _Session(f"comparing {masked(checkpoint)}", master, settings, quiet=quiet) as session:
        changed = _found(_stored(checkpoint, session, seal).rows(asked), limit, parquet)
    changed.tell(as_json=as_json)
    sys.exit(int(changed.total > 0))


@state.command(short_help="Write all state of CHECKPOINT to a savepoint.")
@_checkpoint_argument
@click.argument("location", metavar="LOCATION")
@_operator_option
@_version_option
@_seal_option
@session_options
@json_option
@quiet_option
def savepoint(
    *,
    checkpoint: str,
    location: str,
    operator: int | None,
    version: int | None,
    seal: BinaryIO | None,
    master: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Write all state of CHECKPOINT to a savepoint in the empty folder LOCATION."""
    with _Session(f"writing {masked(location)}", master, settings, quiet=quiet) as session:
        written = _stored(checkpoint, session, seal).savepoint(location, operator, version)
    _tell_savepoint(written, as_json=as_json)


@state.command("import", short_help="Write the state of a PySpark query to a savepoint.")
@_checkpoint_argument
@click.argument("location", metavar="LOCATION")
@_operator_option
@_version_option
@click.option("--ttl", "ttls", multiple=True, metavar="STATE=MS", help="A state's time to live in ms; can be repeated.")
@click.option("--group-state", metavar="NAME", help="The new name of the state of applyInPandasWithState.")
@click.option(
    "--time-mode",
    type=click.Choice(["EventTime", "ProcessingTime"]),
    help="The time mode of the timeouts of applyInPandasWithState.",
)
@click.option(
    "--seal", type=click.File("rb"), metavar="FILE", help="A file with the key that the savepoint is to be sealed with."
)
@session_options
@json_option
@quiet_option
def import_(
    *,
    checkpoint: str,
    location: str,
    operator: int | None,
    version: int | None,
    ttls: tuple[str, ...],
    group_state: str | None,
    time_mode: str | None,
    seal: BinaryIO | None,
    master: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the state of a PySpark query in CHECKPOINT to a savepoint in the empty folder LOCATION."""
    from millpond.state.checkpoint.stored_state import is_query

    if not is_query(checkpoint):
        raise OptionError(
            f"{masked(checkpoint)} is no query's checkpoint. Only the state of a PySpark query is imported."
        )
    ttl_ms = dict(_ttl(text) for text in ttls)
    with _Session(f"writing {masked(location)}", master, settings, quiet=quiet) as session:
        from millpond.spark import import_state

        written = import_state(
            session(),
            checkpoint,
            location,
            operator=operator,
            version=version,
            ttl_ms=ttl_ms,
            group_state=group_state,
            time_mode=time_mode,
            seal=None if seal is None else seal.read(),
        )
    _tell_savepoint(written, as_json=as_json)


class _Session:
    """A Spark session that is made at its first use and stopped at the end. Shows what the command waits for.

    Args:
        doing: what the command does, in words.
        master: Spark's master.
        settings: the settings of the session, as they were given.
        quiet: whether to show nothing.
    """

    def __init__(self, doing: str, master: str | None, settings: tuple[str, ...], *, quiet: bool) -> None:
        self._doing = doing
        self._master = master
        self._settings = settings
        self._spark: SparkSession | None = None
        self._waiting = Waiting(self._wait, quiet=quiet)

    def __enter__(self) -> Self:
        self._waiting.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._waiting.__exit__(*error)
        if self._spark is not None:
            self._spark.stop()

    def __call__(self) -> "SparkSession":
        if self._spark is None:
            self._doing, before = "starting Spark", self._doing
            self._spark = spark_session("state", self._master, session_settings(self._settings), quiet=True)
            self._doing = before
        return self._spark

    def _wait(self) -> Wait:
        tasks = Wait("") if self._spark is None else spark_wait(self._spark)
        return tasks._replace(text=f"{self._doing}: {tasks.text}") if tasks.of else Wait(self._doing)


def _stored(location: str, session: _Session, seal: BinaryIO | None) -> "StoredState":
    from millpond.commands.stored_state import stored_state

    return stored_state(location, session, None if seal is None else seal.read())


def _chosen(name: str | None, *, timers: bool) -> str | None:
    if timers == (name is not None):
        raise OptionError("give the name of a STATE, or --timers. `millpond state ls` lists the states.")
    return name


def _ttl(text: str) -> tuple[str, int]:
    name, milliseconds = pair("--ttl", text, "STATE=MS, such as visits=3600000")
    if not milliseconds.isdecimal():
        raise OptionError(f"--ttl {text!r}: expected a whole number of milliseconds, such as {name}=3600000")
    return name, int(milliseconds)


class _Found(NamedTuple):
    """The rows that were read, or the path that they were written to."""

    total: int
    rows: list[dict[str, Any]]
    columns: list[str]
    more: bool
    parquet: str | None

    def tell(self, *, as_json: bool) -> None:
        """Print the rows, or the number of written rows."""
        if self.parquet is None:
            _print_rows(self.rows, self.columns, more=self.more, as_json=as_json)
            return
        text = f"{self.total} rows in {self.parquet}"
        tell({"rows": self.total, "parquet": self.parquet}, as_json=as_json, text=text)


def _found(rows: "Rows", limit: int, parquet: str | None) -> _Found:
    """Read the rows to print, or write all rows to `parquet`."""
    if parquet is not None:
        return _Found(rows.write(parquet), [], [], more=False, parquet=parquet)
    found = rows.first(limit + 1 if limit else None)
    more = bool(limit) and found.num_rows > limit
    return _Found(found.num_rows, found.slice(0, limit or None).to_pylist(), found.column_names, more, None)


def _print_rows(
    rows: list[dict[str, Any]], columns: list[str] | None = None, *, more: bool = False, as_json: bool
) -> None:
    from millpond.commands.tables import text_table

    text = text_table(rows, columns or list(rows[0])) if columns or rows else "no states"
    if more:
        text += "\n… and more: --limit 0 prints all rows, --parquet PATH writes them"
    tell({"rows": rows, "more": more}, as_json=as_json, text=text)


def _tell_savepoint(written: "Savepoint", *, as_json: bool) -> None:
    from millpond.commands.tables import text_table

    records = []
    for each in written.states():
        files = [file for file in written.contents.files if file.state == each.name]
        records.append(
            {
                "state": each.name,
                "declared": each.describe(),
                "rows": sum(file.rows for file in files),
                "bytes": sum(file.bytes for file in files),
            }
        )
    text = f"savepoint {written.location}\n{text_table(records, ['state', 'declared', 'rows', 'bytes'])}"
    tell({"location": written.location, "states": records}, as_json=as_json, text=text)
