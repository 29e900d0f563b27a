"""An HTTPS server for the processes of one query: its own certificate, a token, and a bounded number of connections.

The file server of full tables (`copies`), the directory of a shared cache and its owners (`shared`) are such servers.

The query's plan, or a directory that the plan names, has the server's certificate and a random token (`tls`). A client
accepts only the server of that certificate, and the server answers only requests with the token. So nobody else can
read an answer, alter one or give a false one.

If there are too many connections, the oldest one that has not shown the token is closed, so that strangers cannot
block clients. Each handshake runs in the connection's own thread.
"""

import hmac
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from millpond.spark.lookup.tls import client_context, server_context

TIMEOUT_S = 60.0
"""The longest wait of either side for the other's next bytes."""

MOST_CONNECTIONS = 64
"""The default for the largest number of connections of a server at a time, each with a thread."""

_LOOK_UP_S = 0.1
"""How often the server checks whether it was closed."""


@dataclass(frozen=True)
class ServerAddress:
    """The address of a server, the token that it requires, and its certificate as PEM."""

    host: str
    port: int
    token: str = field(repr=False)
    certificate: str = field(repr=False)

    def connection(self, timeout_s: float) -> HTTPSConnection:
        """Return a connection, not opened yet, to the server of this certificate and no other."""
        return HTTPSConnection(self.host, self.port, timeout=timeout_s, context=client_context(self.certificate))

    def authorization(self) -> dict[str, str]:
        """Return the header by which a client shows the token."""
        return {"Authorization": _authorization(self.token)}


def _authorization(token: str) -> str:
    return f"Bearer {token}"


class TokenHandler(BaseHTTPRequestHandler):
    """Handles the requests of a connection. A subclass has methods such as `do_GET`, which first call `is_allowed`."""

    timeout = TIMEOUT_S
    # Without this, the body of a small answer would wait for the client to acknowledge the headers.
    disable_nagle_algorithm = True
    token: str
    server: "BoundedServer"

    def is_allowed(self) -> bool:
        """Return whether the request has the token. If not, it is answered with status 403."""
        told = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not hmac.compare_digest(told, _authorization(self.token).encode()):
            self.answer(HTTPStatus.FORBIDDEN)
            return False
        self.server.trust(self.connection)
        return True

    def answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        """Send a whole answer."""
        self.send_response(status)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Do nothing: a line per request would fill the log."""


class BoundedServer(ThreadingHTTPServer):
    """A TLS server with a thread per connection, at most `most` at a time. It serves until it is closed.

    Args:
        host: the address to listen at.
        token: the token that requests must have.
        handler: handles the requests.
        most: the largest number of connections.
    """

    request_queue_size = MOST_CONNECTIONS

    def __init__(self, host: str, token: str, handler: type[TokenHandler], most: int = MOST_CONNECTIONS) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.most = most
        self._context, self.certificate = server_context()
        self._strangers: dict[socket.socket, None] = {}
        """Open connections that have not shown the token yet, oldest first."""
        self._trusted: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((host, 0), type("Handler", (handler,), {"token": token}))
        threading.Thread(target=partial(self.serve_forever, _LOOK_UP_S), name="millpond-lookup", daemon=True).start()

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.server_address[1])

    def close(self) -> None:
        """Stop listening. May be called twice."""
        self.shutdown()
        self.server_close()

    def drop_connections(self) -> None:
        """Close the open connections, in the middle of an answer too."""
        with self._lock:
            for connection in (*self._strangers, *self._trusted):
                with suppress(OSError):
                    # Shut down the plain socket: a thread may be using its TLS layer.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name, which nobody uses."""
        TCPServer.server_bind(self)

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
        # The client has gone if the connection fails. It asks again if it still needs an answer.
        with suppress(ConnectionError, TimeoutError, ssl.SSLError):
            super().finish_request(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection. If there are too many, close the oldest one without the token, or else this one."""
        with self._lock:
            full = len(self._strangers) + len(self._trusted) >= self.most
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
