"""`millpond serve`: serves the features of GroupBys and Joins over HTTP.

With several processes, this one is their parent. It binds the port, starts the same command again for each
of them, and opens no store itself.
"""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millpond.commands.definitions import load_definitions
from millpond.errors import OptionError
from millpond.kv import open_store
from millpond.metrics.otlp import otlp_push
from millpond.serving import AnswerLog, Fetcher
from millpond.serving.answers.answer_values import Stale
from millpond.serving.http import HttpApp, Limits, Tls, http_app, read_api_keys
from millpond.serving.http.running.ending import end_within
from millpond.serving.http.running.log import log_as_json
from millpond.serving.http.running.processes import Place, Processes, serve_as_worker, worker_place
from millpond.serving.http.running.server import bound_listener, run_server, url_of

if TYPE_CHECKING:
    from uvicorn import Server

_LIMITS = {
    "max_body_bytes": "The largest body of a call; a larger one is answered 413.",
    "max_head_bytes": "The largest head of a call; a larger one is answered 431.",
    "max_requests": "The most requests in a call, or rows of a table; more are answered 400.",
    "max_features": "The most features that a call may name; more are answered 400.",
    "max_in_flight": "The most fetches at a time; a further one is answered 429.",
    "max_connections": "The most connections at a time; beyond it those that were idle longest are closed.",
    "timeout_ms": "How long a call may take; then it is answered 503.",
    "head_timeout_ms": "How long a new connection may take to send its first head; then it is closed.",
    "idle_timeout_ms": "How long a connection may idle between two calls; then it is closed.",
    "drain_ms": "How long calls in flight may take when the service is told to stop.",
}
"""What each field of `Limits` bounds, and what happens beyond it."""


def _limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each field of `Limits` to a command."""
    for field in reversed(msgspec.structs.fields(Limits)):
        option = click.option(
            f"--{field.name.replace('_', '-')}",
            type=click.IntRange(min=1),
            default=field.default,
            show_default=True,
            help=_LIMITS[field.name],
        )
        command = option(command)
    return command


@click.command()
@click.argument("definitions", nargs=-1, required=True, metavar="DEFINITIONS...")
@click.option(
    "--store",
    "store_url",
    required=True,
    envvar="MILLPOND_STORE",
    show_envvar=True,
    metavar="URL",
    help="The store of the features: lmdb:///path, redis://host. Put a URL with a password into the environment.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="The port to listen on; 0 chooses a free one.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="The number of processes, which share the port.",
)
@click.option(
    "--tls-certificate", type=click.Path(path_type=Path), help="PEM file with the certificate; the service uses HTTPS."
)
@click.option("--tls-key", type=click.Path(path_type=Path), help="PEM file with the certificate's private key.")
@click.option(
    "--api-keys", type=click.Path(path_type=Path), help="File of API keys, one per line; callers must send one."
)
@click.option("--fetcher-caching/--no-fetcher-caching", default=None, help="Cache every GroupBy, or none.")
@click.option(
    "--fetcher-cache-size", metavar="SIZE", help="The size of each cache of batch rows: 50MB, or 10000 entries."
)
@click.option("--fetcher-tile-cache-size", metavar="SIZE", help="The size of each cache of closed tiles, likewise.")
@click.option("--cache-budget", metavar="SIZE", help="The limit of all caches of a process together, such as 2GB.")
@click.option(
    "--hit-rate-curves", is_flag=True, help="Record the hit rates of the caches at other sizes; see `millpond caches`."
)
@click.option(
    "--cache-traces",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Write the hashed keys that are requested from each cache to files in this folder.",
)
@click.option(
    "--tail-freshness-ms",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The largest age of open tiles in an answer.",
)
@click.option(
    "--stale",
    type=click.Choice(("refuse", "serve-and-flag")),
    default="refuse",
    show_default=True,
    help="What happens to features that the batch is too old for.",
)
@click.option(
    "--answer-log",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Log a sample of the answers as Parquet in this folder; see `millpond check`.",
)
@click.option(
    "--answer-sample",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="The share of the answers that --answer-log logs.",
)
@click.option("--otlp", "otlp_endpoint", metavar="URL", help="Push metrics to the OpenTelemetry collector at this URL.")
@click.option("--log-calls", is_flag=True, help="Log each call to stderr, as a line of JSON.")
@_limit_options
def serve(
    *,
    definitions: tuple[str, ...],
    store_url: str,
    host: str,
    port: int,
    processes: int,
    tls_certificate: Path | None,
    tls_key: Path | None,
    api_keys: Path | None,
    fetcher_caching: bool | None,
    fetcher_cache_size: str | None,
    fetcher_tile_cache_size: str | None,
    cache_budget: str | None,
    hit_rate_curves: bool,
    cache_traces: Path | None,
    tail_freshness_ms: int,
    stale: Stale,
    answer_log: Path | None,
    answer_sample: float,
    otlp_endpoint: str | None,
    log_calls: bool,
    **limit_options: Any,
) -> None:
    """Serve the features of GroupBys and Joins over HTTP.

    DEFINITIONS are the Python files or modules that define them.
    """
    log_as_json()
    limits = Limits(**limit_options)
    tls = _tls(tls_certificate, tls_key)
    keys = [] if api_keys is None else read_api_keys(api_keys)
    place = worker_place()
    if place is None and processes > 1:
        if store_url.startswith("memory:"):
            raise OptionError("--processes: a store in memory is one process's own. Serve from lmdb:// or redis://.")
        with bound_listener(host, port) as listener:
            command = [sys.executable, "-c", "from millpond.cli import main; main()", *sys.argv[1:]]
            parent = Processes(command, listener, processes, limits.drain_ms)
            parent.run(lambda: _announce(url_of(listener, tls)))
        return
    found = load_definitions(definitions)
    with (
        open_store(store_url) as store,
        Fetcher(
            store,
            [*found.group_bys, *found.joins],
            enable_fetcher_caching=fetcher_caching,
            fetcher_cache_size=fetcher_cache_size,
            fetcher_tile_cache_size=fetcher_tile_cache_size,
            cache_budget=cache_budget,
            hit_rate_curves=hit_rate_curves,
            cache_traces=None if cache_traces is None else _own_folder(cache_traces, place),
            tail_freshness_ms=tail_freshness_ms,
            stale=stale,
            answer_log=None if answer_log is None else AnswerLog(answer_log, sample=answer_sample),
        ) as fetcher,
    ):
        app = http_app(fetcher, limits=limits, api_keys=keys, log_calls=log_calls)
        with _pushing(app, otlp_endpoint, place):
            if place is not None:
                serve_as_worker(app, place, tls=tls)
                return
            with bound_listener(host, port) as listener:

                async def on_start(_server: "Server") -> None:
                    _announce(url_of(listener, tls))

                run_server(app, [listener], tls=tls, on_start=on_start, on_stop=lambda: end_within(limits.drain_ms))


def _pushing(app: HttpApp, endpoint: str | None, place: Place | None) -> AbstractContextManager[None]:
    """Push the metrics of this process if there is an endpoint."""
    if endpoint is None:
        return nullcontext()
    instance = str(os.getpid()) if place is None else f"{os.getppid()}-{place.number}"
    return otlp_push(app.families, endpoint, service="millpond-serve", instance=instance)


def _own_folder(folder: Path, place: Place | None) -> Path:
    """Return the folder of this process, which is created for a worker."""
    if place is None:
        return folder
    own = folder / f"process-{place.number}"
    own.mkdir(exist_ok=True)
    return own


def _announce(url: str) -> None:
    click.echo(f"millpond: serving on {url}")


def _tls(certificate: Path | None, key: Path | None) -> Tls | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise OptionError("--tls-certificate and --tls-key go together; give both, or none for HTTP.")
    return Tls(certificate, key)
