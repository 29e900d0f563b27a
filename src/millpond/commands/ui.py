"""`millpond ui`: serves the web page for stored state, and for the combined pages of other processes."""

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millpond.api_keys import read_api_keys
from millpond.commands.spark_command import session_settings, spark_session
from millpond.commands.stored_state import stored_state
from millpond.errors import OptionError
from millpond.state.checkpoint.stored_state import StoredState
from millpond.ui.joined_pages import joined_pages
from millpond.ui.server import page_server
from millpond.ui.stored_state import StoredStateView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORT = 8767


@click.command()
@click.argument("pages", nargs=-1, metavar="[URL]...")
@click.option("--state", "locations", multiple=True, metavar="LOCATION", help="A checkpoint or savepoint to show.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="The port to listen on; 0 chooses a free one.",
)
@click.option(
    "--api-keys",
    type=click.Path(path_type=Path),
    help="File of API keys, one per line; a browser must have one, and the first is sent to the pages.",
)
@click.option("--master", metavar="URL", help="Spark's master, for checkpoints of queries; by default local[*].")
@click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the session.")
def ui(
    *,
    pages: tuple[str, ...],
    locations: tuple[str, ...],
    host: str,
    port: int,
    api_keys: Path | None,
    master: str | None,
    settings: tuple[str, ...],
) -> None:
    """Serve the web page for stored state, and for the combined pages at the URLs of services and Spark drivers."""
    keys = [] if api_keys is None else read_api_keys(api_keys)
    if not pages and not locations:
        raise OptionError("there is nothing to show: give the URL of a service or a Spark driver, or --state LOCATION.")
    sessions = _Session(master, settings)
    view = StoredStateView(lambda: list(locations), sessions.open)
    source = joined_pages(pages, view, keys[0] if keys else None)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        with page_server(source, host, port, keys) as url:
            click.echo(f"millpond: showing the page on {url}")
            stopping.wait()
    finally:
        sessions.stop()


class _Session:
    """A Spark session that is made when a query's checkpoint is first opened."""

    def __init__(self, master: str | None, settings: tuple[str, ...]) -> None:
        self._master = master
        self._settings = settings
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None

    def open(self, location: str) -> StoredState:
        return stored_state(location, self._session)

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()

    def _session(self) -> "SparkSession":
        with self._lock:
            if self._spark is None:
                self._spark = spark_session("ui", self._master, session_settings(self._settings))
            return self._spark
