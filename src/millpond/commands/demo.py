"""`millpond demo`: runs a year of real flights through every part of Millpond, and checks every answer."""

import sys
from pathlib import Path

import click

from millpond.errors import MissingDependencyError

STOPPED = 130
"""The exit code of an interrupted command."""


@click.command()
@click.option("--events", type=click.IntRange(min=1), help="Replay only the first N flights.")
@click.option("--until", metavar="DATE", help="Replay only the flights before this day (UTC, such as 2013-02-01).")
@click.option(
    "--workdir",
    type=click.Path(path_type=Path),
    default=Path("millpond-demo"),
    show_default=True,
    help="The folder of the run's files. The same command on the same folder continues where it stopped.",
)
@click.option(
    "--backend",
    type=click.Choice(("heap", "rocksdb", "spillable")),
    default="heap",
    show_default=True,
    help="The state backend: Python objects in memory, RocksDB on local disk, or memory that spills to disk.",
)
@click.option(
    "--state-cache",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Entries of the cache in front of the backend, per shard; 0 for none.",
)
@click.option(
    "--store",
    metavar="URL",
    help="The store of the features: redis://host:port, lmdb:///path; by default LMDB in the workdir.",
)
@click.option("--serve", is_flag=True, help="Keep the HTTP server running at the end.")
@click.option("--port", type=click.IntRange(1, 65535), default=8765, show_default=True, help="The port of --serve.")
@click.option(
    "--json",
    "json_file",
    metavar="[FILE|-]",
    is_flag=False,
    flag_value="-",
    help="Write the result as JSON to FILE, or to stdout.",
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
def demo(
    *,
    events: int | None,
    until: str | None,
    workdir: Path,
    backend: str,
    state_cache: int,
    store: str | None,
    serve: bool,
    port: int,
    json_file: str | None,
    quiet: bool,
) -> None:
    """Send a year of real flights through lookups, keyed state, features and the fetcher, and check the answers."""
    try:
        from millpond.demo.show import Request, show
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f'The demo needs {error.name}, which is not installed. Run: pip install "millpond[demo]"'
        ) from error

    request = Request(
        events,
        until,
        workdir,
        serve=serve,
        port=port,
        json_file=json_file,
        quiet=quiet,
        backend=backend,
        state_cache=state_cache,
        store=store,
    )
    try:
        sys.exit(0 if show(request) else 1)
    except KeyboardInterrupt:
        click.echo("millpond: stopped. The same command goes on from here.", err=True)
        sys.exit(STOPPED)
