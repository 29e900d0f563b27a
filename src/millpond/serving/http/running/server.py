"""Running the app in one process: bind first, then serve, in the foreground or on a thread.

Place on the data path: under the app, above the network. Invariant: the port is bound before anything is
started, so a taken port raises an error in the caller and is not just a line in a log. A server ends
within `Limits.drain_ms` of being told to: calls in flight are answered, then connections are cut.
"""

import asyncio
import errno
import gc
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from millpond.errors import MissingDependencyError, OptionError, UnavailableError
from millpond.serving.http.app import HttpApp
from millpond.serving.http.running.connections import Connections, close_all, protocol_class
from millpond.serving.http.running.open_files import (
    ACCEPTED_AT_ONCE,
    allow_open_files,
    connections_allowed,
    report_refused_accepts,
)

if TYPE_CHECKING:
    from uvicorn import Server

_START_SECONDS = 30
_MAX_PORT = 65_535
_BACKLOG = 2_048


class Tls(msgspec.Struct, frozen=True):
    """The PEM files for HTTPS: the certificate with its chain, and the private key."""

    certificate: Path
    key: Path


def serve(app: HttpApp, host: str = "127.0.0.1", port: int = 8765, *, tls: Tls | None = None) -> None:
    """Serve an app until the process is told to stop by SIGTERM; calls in flight end first.

    Raises `UnavailableError`, before anything is served, if the port is taken, and `KeyboardInterrupt`
    if it was interrupted.
    """
    with bound_listener(host, port) as listener:
        run_server(app, [listener], tls=tls)


@contextmanager
def running_server(app: HttpApp, host: str = "127.0.0.1", port: int = 0, *, tls: Tls | None = None) -> Iterator[str]:
    """Serve an app on a thread during a `with` block, which gets its URL; port 0 takes a free one.

    >>> import urllib.request
    >>> from millpond.kv import MemoryStore
    >>> from millpond.serving import Fetcher, http_app
    >>> with running_server(http_app(Fetcher(MemoryStore(), []))) as url:
    ...     urllib.request.urlopen(url + "/health").read()
    b'{"status":"ok"}'
    """
    with bound_listener(host, port) as listener:
        answered = threading.Event()
        server = make_server(app, tls, on_start=_setter(answered))

        def run() -> None:
            try:
                server.run(sockets=[listener])
            finally:
                answered.set()

        thread = threading.Thread(target=run, name="millpond-http", daemon=True)
        thread.start()
        try:
            if not answered.wait(_START_SECONDS) or not server.started:
                raise UnavailableError(f"the HTTP server on {host} did not start; its log has the reason.")
            yield url_of(listener, tls)
        finally:
            server.should_exit = True
            thread.join(app.limits.drain_ms / 1_000 + 1)
            server.force_exit = True
            thread.join(1)


def run_server(
    app: HttpApp,
    listeners: Sequence[socket.socket],
    *,
    tls: Tls | None = None,
    on_start: "Callable[[Server], Awaitable[None]] | None" = None,
    on_stop: Callable[[], object] = int,
) -> None:
    """Serve on listening sockets, in this thread, until SIGTERM; for a process that only serves.

    `on_start` is awaited once it serves. `on_stop` is called when it is told to stop.
    """
    allow_open_files(app.limits.max_connections)
    server = make_server(app, tls, on_start=on_start, on_stop=on_stop)
    # Objects made so far stay for good: the collector need not check them again.
    gc.collect()
    gc.freeze()
    server.run(sockets=list(listeners))


def make_server(
    app: HttpApp,
    tls: Tls | None,
    *,
    on_start: "Callable[[Server], Awaitable[None]] | None" = None,
    on_stop: Callable[[], object] = int,
) -> "Server":
    """Return a uvicorn server of the app, with bounded connections; `on_start` and `on_stop` as in `run_server`."""
    try:
        from uvicorn import Config, Server
    except ImportError as error:
        raise MissingDependencyError(
            "serving over HTTP needs the package uvicorn, which is not installed: pip install 'millpond[serving]'"
        ) from error
    limits = app.limits
    connections = Connections(limits, app.clock, connections_allowed(limits.max_connections))
    app.open_connections = connections.__len__

    class DrainingServer(Server):
        """Watches its connections, and lets calls in flight end."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            report_refused_accepts(asyncio.get_running_loop())
            await super().startup(sockets)
            for listener in sockets or ():
                # The queue of the system; uvicorn made it as short as the number accepted at once.
                listener.listen(_BACKLOG)
            self.watching = asyncio.create_task(connections.watch())
            if on_start is not None:
                await on_start(self)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.draining = True
            await super().shutdown(sockets)
            self.watching.cancel()
            close_all(self)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # uvicorn raises the signal again once it has ended. But being told to stop is not a failure.
            if not self.should_exit:
                on_stop()
            if sig == signal.SIGTERM:
                self.should_exit = True
            else:
                super().handle_exit(sig, frame)

    config = Config(
        app,
        http=protocol_class(connections, limits),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_keep_alive=-(-limits.idle_timeout_ms // 1_000),
        timeout_graceful_shutdown=limits.drain_ms / 1_000,  # type: ignore[arg-type]  # any number of seconds will do
        ssl_certfile=None if tls is None else str(tls.certificate),
        ssl_keyfile=None if tls is None else str(tls.key),
    )
    try:
        config.load()
    except (OSError, ValueError) as error:
        named = "" if tls is None else f" with {tls.certificate} and {tls.key}"
        raise OptionError(f"the server cannot be set up{named}: {error}.") from error
    return DrainingServer(config)


@contextmanager
def bound_listener(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket that listens on the port; connections wait in its queue until the server takes them."""
    if not 0 <= port <= _MAX_PORT:
        raise OptionError(f"port is {port}; a port is 1 to {_MAX_PORT}, or 0 for any that is free.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol's number asyncio sets TCP_NODELAY on each connection. Without it an answer on a kept
    # connection waits 40 ms for the client's delayed acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        # A port may be taken again at once after its last server has ended.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UnavailableError(
                    f"port {port} on {host} is taken by another program. Stop it, or choose another port "
                    f"(port={port + 1 if port < _MAX_PORT else 0}; port=0 takes a free one)."
                ) from error
            raise UnavailableError(f"cannot listen on {host}, port {port}: {error}. Choose another.") from error
        yield listener


def url_of(listener: socket.socket, tls: Tls | None = None) -> str:
    """Return the URL of a listener."""
    scheme = "http" if tls is None else "https"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"


def _setter(event: threading.Event) -> "Callable[[Server], Awaitable[None]]":
    async def set_event(_server: "Server") -> None:
        event.set()

    return set_event
