"""Copies the file of a full table to a machine that does not see the driver's folder: over HTTPS, once per version.

Place on the data path: between the driver and the workers of a full table. The driver serves only the newest version.
A worker requests it with the version that its executor has (`If-None-Match`), and usually there is nothing newer. The
invariant: **a copy gets its final name only when it is complete**.

The first worker of an executor that learns of a new version fetches it under a file lock. The others use the version
they have, or wait if there is none yet.

The plan contains the server's certificate and a random token (`tls`). A worker accepts only the server of that
certificate, and the server answers only requests with the token. So nobody else can get a table, read one in transit,
or give a worker a false one.

The number of connections is limited. If there are too many, the oldest one that has not shown the token is closed, so
that strangers cannot block workers. Each handshake runs in the connection's own thread.

The trade-off: executors must reach one more port of the driver. Spark's own ways to send files do not fit: a broadcast
belongs to one plan and cannot be replaced by a reload, and a file added by `addFile` can never be removed.
"""

import fcntl
import hmac
import os
import secrets
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from millpond.errors import UnavailableError
from millpond.spark.environment.folders import owned_folder
from millpond.spark.lookup.tls import client_context, server_context

TIMEOUT_S = 60.0
"""The longest wait of either side for the other's next bytes."""

_LOOK_UP_S = 0.1
"""How often the server checks whether it was closed."""

MOST_CONNECTIONS = 64
"""The largest number of connections of a server at a time, each with a thread."""

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class ServerAddress:
    """The address of a file server, the token that it requires, and its certificate as PEM."""

    host: str
    port: int
    token: str = field(repr=False)
    certificate: str = field(repr=False)


class FileServer:
    """Serves the newest version of one table, in threads of its own, until it is closed.

    Args:
        newest: finds the newest file; its `UnavailableError` is sent to the worker.
        host: the name by which executors know this machine.
        bound: the address to listen at.
    """

    def __init__(self, newest: Callable[[], Path], host: str, bound: str) -> None:
        token = secrets.token_urlsafe(32)
        context, certificate = server_context()

        class Handler(_Handler):
            expected = _authorization(token)
            newest_file = staticmethod(newest)

        self._server = _BoundedServer((bound, 0), Handler, context)
        self.address = ServerAddress(host, self._server.server_address[1], token, certificate)
        serve = partial(self._server.serve_forever, _LOOK_UP_S)
        threading.Thread(target=serve, name="millpond-lookup-files", daemon=True).start()

    def close(self) -> None:
        """Stop listening. May be called twice."""
        self._server.shutdown()
        self._server.server_close()


class _BoundedServer(ThreadingHTTPServer):
    """A TLS server with a thread per connection, and at most `MOST_CONNECTIONS`."""

    def __init__(self, address: tuple[str, int], handler: type["_Handler"], context: ssl.SSLContext) -> None:
        super().__init__(address, handler)
        self._context = context
        self._strangers: dict[socket.socket, None] = {}
        """Open connections that have not shown the token yet, oldest first."""
        self._trusted: set[socket.socket] = set()
        self._lock = threading.Lock()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection without its handshake, so that the accepting thread never waits for a peer."""
        accepted, address = super().get_request()
        accepted.settimeout(TIMEOUT_S)
        return self._context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False), address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Make the handshake and answer, in the connection's thread. Silently close a connection without TLS."""
        try:
            request.do_handshake()
        except OSError:
            return
        super().finish_request(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection. If there are too many, close the oldest one without the token, or else this one."""
        with self._lock:
            full = len(self._strangers) + len(self._trusted) >= MOST_CONNECTIONS
            evicted = next(iter(self._strangers), None) if full else None
            if evicted is not None:
                del self._strangers[evicted]
                with suppress(OSError):
                    # Shut down the plain socket: a thread may be using its TLS layer.
                    socket.socket.shutdown(evicted, socket.SHUT_RDWR)
            if not full or evicted is not None:
                self._strangers[request] = None
                full = False
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def trust(self, request: socket.socket) -> None:
        """Mark a connection that has shown the token as trusted."""
        with self._lock:
            if request in self._strangers:
                del self._strangers[request]
                self._trusted.add(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._strangers.pop(request, None)
            self._trusted.discard(request)
        super().shutdown_request(request)


def _authorization(token: str) -> str:
    """Return the header by which a worker shows the token."""
    return f"Bearer {token}"


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S
    expected: str
    newest_file: Callable[[], Path]
    server: _BoundedServer

    def do_GET(self) -> None:
        """Send the newest file, or status 304 if the client has it."""
        told = self.headers.get("Authorization", "").encode("latin-1", "replace")
        try:
            if not hmac.compare_digest(told, self.expected.encode()):
                self._answer(HTTPStatus.FORBIDDEN)
            else:
                self.server.trust(self.connection)
                self._hand_out()
        except (ConnectionError, TimeoutError, ssl.SSLError):
            # The client has gone. It asks again if it still needs the file.
            self.close_connection = True

    def _hand_out(self) -> None:
        while True:
            try:
                path = self.newest_file()
                file = path.open("rb")
            except FileNotFoundError:
                # A reload has removed the file meanwhile, so there is a newer one.
                continue
            except UnavailableError as error:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error).encode())
                return
            break
        with file:
            if self.headers.get("If-None-Match") == path.name:
                self._answer(HTTPStatus.NOT_MODIFIED)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("ETag", path.name)
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile, _PIECE_BYTES)

    def _answer(self, status: HTTPStatus, text: bytes = b"") -> None:
        self.send_response(status)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Do nothing: a line per partition would fill the driver's log."""


def fetched(name: str, server: ServerAddress, copies: Path, suffix: str) -> Path:
    """Return the newest version of a table in `copies`, and fetch it if needed. Versions are named `*suffix`.

    Raises:
        UnavailableError: the driver does not answer, or has no table.
    """
    # The parent is Spark's own folder, which also holds the shuffle files.
    copies.parent.mkdir(parents=True, exist_ok=True)
    owned_folder(copies)
    while True:
        there = sorted(copies.glob(f"*{suffix}"))
        newest = there[-1] if there else None
        context = client_context(server.certificate)
        with closing(HTTPSConnection(server.host, server.port, timeout=TIMEOUT_S, context=context)) as connection:
            answer = _asked(name, server, connection, newest)
            if newest is not None and answer.status == HTTPStatus.NOT_MODIFIED:
                return newest
            with _locked(copies / "lock", wait=newest is None) as locked:
                if newest is not None and not locked:
                    return newest
                if sorted(copies.glob(f"*{suffix}")) == there:
                    _receive(name, server, answer, copies, suffix)
                    for outdated in there:
                        outdated.unlink(missing_ok=True)


def _asked(name: str, server: ServerAddress, connection: HTTPSConnection, have: Path | None) -> HTTPResponse:
    headers = {"Authorization": _authorization(server.token)} | ({} if have is None else {"If-None-Match": have.name})
    try:
        connection.request("GET", "/", headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode() if answer.status >= HTTPStatus.BAD_REQUEST else ""
    except (OSError, HTTPException) as error:
        raise _unreachable(name, server, error) from error
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise UnavailableError(text)
    if text or answer.status not in (HTTPStatus.OK, HTTPStatus.NOT_MODIFIED):
        raise _unreachable(name, server, f"it answered {answer.status} {answer.reason}")
    return answer


def _receive(name: str, server: ServerAddress, answer: HTTPResponse, copies: Path, suffix: str) -> None:
    version, length = Path(str(answer.headers["ETag"])).name, str(answer.headers["Content-Length"])
    if not version.endswith(suffix) or not length.isdecimal():
        raise _unreachable(name, server, f"it gave no version and length, but {version!r} and {length!r}")
    unfinished = copies / f"{version}.unfinished"
    try:
        with unfinished.open("wb") as file:
            shutil.copyfileobj(answer, file, _PIECE_BYTES)
            received = file.tell()
    except (OSError, HTTPException) as error:
        raise UnavailableError(
            f"lookup table {name!r}: its file could not be fetched from {server.host}:{server.port} to {unfinished} "
            f"({error}); is there room, and does the driver live?"
        ) from error
    if received != int(length):
        raise _unreachable(name, server, f"it sent {received} of {length} bytes")
    unfinished.rename(copies / version)


def _unreachable(name: str, server: ServerAddress, what: object) -> UnavailableError:
    return UnavailableError(
        f"lookup table {name!r}: this host does not see the driver's folder, and the driver does not hand the table "
        f"out at {server.host}:{server.port} ({what}). Let executors reach that port, or point the driver's TMPDIR at "
        "storage that all share; and do not close the table while a query reads it"
    )


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Lock a file. Yield whether the lock is held: without `wait`, it is not if another process has it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
