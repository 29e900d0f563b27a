"""Running the app: bind first, then serve, in the foreground or beside the caller.

Place on the data path: under `http`, above the network. Invariant: the port is bound before anything is
started, so a taken port is an error of the caller and not a line in a log; and whatever was started ends
within `STOP_SECONDS` of being told to.
"""

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millpond.errors import MissingDependencyError, OptionError, UnavailableError
from millpond.serving.fetcher import Fetcher
from millpond.serving.http import http_app

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from uvicorn import Server

STOP_SECONDS = 5
"""How long calls in flight may take to end when the server is told to stop; then they are cut."""

_START_SECONDS = 30
_MAX_PORT = 65_535


def serve(fetcher: Fetcher, host: str = "127.0.0.1", port: int = 8765) -> None:
    """Serve a fetcher over HTTP until the process is interrupted; calls in flight end first.

    Raises `UnavailableError`, before anything is served, if the port is taken, and `KeyboardInterrupt`
    when it was interrupted.
    """
    app = http_app(fetcher)
    with _bound(host, port) as listener:
        _server(app).run(sockets=[listener])


@contextmanager
def running_server(app: "Starlette", host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve an app on a thread for the length of a `with`, which gets its URL; port 0 takes a free one.

    >>> import urllib.request
    >>> from millpond.kv import MemoryStore
    >>> with running_server(http_app(Fetcher(MemoryStore(), []))) as url:
    ...     urllib.request.urlopen(url + "/health").read()
    b'{"status":"ok"}'
    """
    with _bound(host, port) as listener:
        server = _server(app)
        answered = threading.Event()
        started = server.startup

        async def announced(sockets: list[socket.socket] | None = None) -> None:
            await started(sockets=sockets)
            answered.set()

        def run() -> None:
            try:
                server.run(sockets=[listener])
            finally:
                answered.set()

        server.startup = announced  # type: ignore[method-assign]  # uvicorn has no other sign of having started
        thread = threading.Thread(target=run, name="millpond-http", daemon=True)
        thread.start()
        try:
            if not answered.wait(_START_SECONDS) or not server.started:
                raise UnavailableError(f"the HTTP server on {host} did not start; its log has the reason.")
            yield _url(listener)
        finally:
            server.should_exit = True
            thread.join(STOP_SECONDS + 1)
            server.force_exit = True
            thread.join(1)


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens on the port; connections wait in its queue until the server takes them."""
    if not 0 <= port <= _MAX_PORT:
        raise OptionError(f"port is {port}; a port is 1 to {_MAX_PORT}, or 0 for any that is free.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol's number asyncio sets TCP_NODELAY on each connection. Without it an answer on a kept
    # connection waits 40 ms for the client's delayed acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        # A port whose last server has just ended may be taken again at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UnavailableError(
                    f"port {port} on {host} is taken by another program. Stop it, or choose another port "
                    f"(port={port + 1 if port < _MAX_PORT else 0}; port=0 takes a free one)."
                ) from error
            raise UnavailableError(f"cannot listen on {host}, port {port}: {error}. Choose another.") from error
        yield listener


def _server(app: "Starlette") -> "Server":
    try:
        from uvicorn import Config, Server
    except ImportError as error:
        raise MissingDependencyError(
            "serving over HTTP needs the package uvicorn, which is not installed: pip install 'millpond[serving]'"
        ) from error
    return Server(
        Config(app, lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_SECONDS)
    )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
