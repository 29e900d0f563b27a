"""Copies the file of a full table to a machine that does not see the driver's folder: over HTTPS, once per version.

Place on the data path: between the driver and the workers of a full table. The driver serves only the newest version.
A worker requests it with the version that its executor has (`If-None-Match`), and usually there is nothing newer. The
invariant: **a copy gets its final name only when it is complete**.

The first worker of an executor that learns of a new version fetches it under a file lock. The others use the version
they have, or wait if there is none yet.

The server is a `tls_server`, whose address is in the plan.

The trade-off: executors must reach one more port of the driver. Spark's own ways to send files do not fit: a broadcast
belongs to one plan and cannot be replaced by a reload, and a file added by `addFile` can never be removed.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path

from millpond.errors import UnavailableError
from millpond.spark.environment.folders import owned_folder
from millpond.spark.lookup.tls_server import TIMEOUT_S, BoundedServer, ServerAddress, TokenHandler

_PIECE_BYTES = 1 << 20


class FileServer:
    """Serves the newest version of one table, in threads of its own, until it is closed.

    Args:
        newest: finds the newest file; its `UnavailableError` is sent to the worker.
        host: the name by which executors know this machine.
        bound: the address to listen at.
    """

    def __init__(self, newest: Callable[[], Path], host: str, bound: str) -> None:
        token = secrets.token_urlsafe(32)

        class Handler(_Handler):
            newest_file = staticmethod(newest)

        self._server = BoundedServer(bound, token, Handler)
        self.address = ServerAddress(host, self._server.port, token, self._server.certificate)

    def close(self) -> None:
        """Stop listening. May be called twice."""
        self._server.close()


class _Handler(TokenHandler):
    newest_file: Callable[[], Path]

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        """Send the newest file, or status 304 if the client has it."""
        if not self.is_allowed():
            return
        while True:
            try:
                path = self.newest_file()
                file = path.open("rb")
            except FileNotFoundError:
                # A reload has removed the file meanwhile, so there is a newer one.
                continue
            except UnavailableError as error:
                self.answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error).encode())
                return
            break
        with file:
            if self.headers.get("If-None-Match") == path.name:
                self.answer(HTTPStatus.NOT_MODIFIED)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("ETag", path.name)
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            shutil.copyfileobj(file, self.wfile, _PIECE_BYTES)


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
        with closing(server.connection(TIMEOUT_S)) as connection:
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
    headers = server.authorization() | ({} if have is None else {"If-None-Match": have.name})
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
