"""How the file of a full table comes to a machine that does not see the driver's folder: over HTTP, once a version.

Between the driver and the workers of a full table. The driver serves one thing, the newest version;
a worker asks for it with the version that its executor has (`If-None-Match`), and most often hears that
there is nothing newer. The invariant: **a copy appears under its name when it is whole**.

The first worker of an executor that hears of a new version fetches it under a file lock. The others go
on with the version they have, or wait if there is none yet.

Who may ask is told by a random token, which travels with the plan. Like Spark's own traffic by
default, neither it nor the table is encrypted on the way.

Trade-off: a port of the driver that executors must reach, beside Spark's. Spark's own ways of sending
do not fit: a broadcast belongs to one plan and not to a reload after it, and what `addFile` has added
can never be taken away again.
"""

import fcntl
import hmac
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from millpond.errors import UnavailableError
from millpond.spark.environment.folders import owned_folder

TIMEOUT_S = 60.0
"""How long either side waits for the other's next bytes."""

_LOOK_UP_S = 0.1
"""How often the server looks whether it was closed."""

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class ServerAddress:
    """Where a file server listens, and what it wants to hear first."""

    host: str
    port: int
    token: str


class FileServer:
    """Serves the newest version of one table, in threads of its own, until it is closed.

    Args:
        newest: finds it; an `UnavailableError` is handed on to who asked.
        host: the name by which executors know this machine.
        bound: the address to listen at.
    """

    def __init__(self, newest: Callable[[], Path], host: str, bound: str) -> None:
        token = secrets.token_urlsafe(32)

        class Handler(_Handler):
            expected = f"Bearer {token}"
            newest_file = staticmethod(newest)

        self._server = ThreadingHTTPServer((bound, 0), Handler)
        self.address = ServerAddress(host, self._server.server_address[1], token)
        serve = partial(self._server.serve_forever, _LOOK_UP_S)
        threading.Thread(target=serve, name="millpond-lookup-files", daemon=True).start()

    def close(self) -> None:
        """Listen no more. Idempotent."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S
    expected: str
    newest_file: Callable[[], Path]

    def do_GET(self) -> None:
        """The newest file, or nothing if that is the one the asker has."""
        try:
            if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.expected.encode()):
                self._answer(HTTPStatus.FORBIDDEN)
            else:
                self._hand_out()
        except (ConnectionError, TimeoutError):
            # Who asked went away in the middle, and asks again if it still wants the file.
            self.close_connection = True

    def _hand_out(self) -> None:
        while True:
            try:
                path = self.newest_file()
                file = path.open("rb")
            except FileNotFoundError:
                # A reload since we looked has removed it, so there is a newer one.
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
            self.connection.sendfile(file)

    def _answer(self, status: HTTPStatus, text: bytes = b"") -> None:
        self.send_response(status)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nothing: a line a partition would fill the driver's log."""


def fetched(name: str, server: ServerAddress, copies: Path, suffix: str) -> Path:
    """The newest version of a table in `copies`, fetched if it is not there; versions are called `*suffix`.

    Raises:
        UnavailableError: the driver does not answer, or has no table to give.
    """
    # Its parent is Spark's, which trusts it with the shuffle.
    copies.parent.mkdir(parents=True, exist_ok=True)
    owned_folder(copies)
    while True:
        there = sorted(copies.glob(f"*{suffix}"))
        newest = there[-1] if there else None
        with closing(HTTPConnection(server.host, server.port, timeout=TIMEOUT_S)) as connection:
            answer = _asked(name, server, connection, newest)
            if newest is not None and answer.status == HTTPStatus.NOT_MODIFIED:
                return newest
            with _locked(copies / "lock", wait=newest is None) as locked:
                if newest is not None and not locked:
                    return newest
                if sorted(copies.glob(f"*{suffix}")) == there:
                    _receive(name, server, answer, copies)
                    for outdated in there:
                        outdated.unlink(missing_ok=True)


def _asked(name: str, server: ServerAddress, connection: HTTPConnection, have: Path | None) -> HTTPResponse:
    headers = {"Authorization": f"Bearer {server.token}"} | ({} if have is None else {"If-None-Match": have.name})
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


def _receive(name: str, server: ServerAddress, answer: HTTPResponse, copies: Path) -> None:
    version = Path(str(answer.headers["ETag"])).name
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
    if received != int(answer.headers["Content-Length"]):
        raise _unreachable(name, server, f"it sent {received} of {answer.headers['Content-Length']} bytes")
    unfinished.rename(copies / version)


def _unreachable(name: str, server: ServerAddress, what: object) -> UnavailableError:
    return UnavailableError(
        f"lookup table {name!r}: this host does not see the driver's folder, and the driver does not hand the table "
        f"out at {server.host}:{server.port} ({what}). Let executors reach that port, or point the driver's TMPDIR at "
        "storage that all share; and do not close the table while a query reads it"
    )


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file, or if it is taken and we do not `wait`, not."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
