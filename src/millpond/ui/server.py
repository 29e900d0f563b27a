"""The server of the page for a process without a web server: a Spark driver, or `millpond ui`.

Place on the data path: beside it. It answers in threads of its own and uses only the standard library, so a driver
needs no other package. `millpond serve` sends the same files by its own server.

Invariant: a failure in a view becomes an error answer, and never an error of the observed process. While the process
ends, a view that is no longer available is answered as "unavailable".
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from millpond.api_keys import ApiKeys
from millpond.errors import DataError, MillpondError, OptionError, UnavailableError
from millpond.metrics.families import MEDIA_TYPE, Family, prometheus_text
from millpond.ui.static_files import GUARDS, static_files

View = Callable[[Mapping[str, str]], object]
"""Makes the document of a view from the parameters of the query string."""

_TIMEOUT_SECONDS = 30.0
_MAX_BODY_BYTES = 1 << 20

log = logging.getLogger("millpond.ui")


class Posted(msgspec.Struct, frozen=True):
    """A finished answer: its status and its JSON."""

    status: int
    body: bytes


class PageSource(msgspec.Struct, frozen=True):
    """The source of everything that a page shows.

    Attributes:
        views: the views by name, such as `overview`.
        families: returns all metrics, for `/metrics`.
        post: answers an API call, given its path and body; None without an API.
        get: returns a document that is not a view, such as `/openapi.json`; None if there are none.
    """

    views: Mapping[str, View]
    families: Callable[[], list[Family]]
    post: Callable[[str, bytes], Posted] | None = None
    get: Callable[[str], Posted] | None = None


@contextmanager
def page_server(source: PageSource, host: str, port: int, api_keys: Iterable[str] = ()) -> Iterator[str]:
    """Serve a page during a `with` block and yield its URL. Port 0 takes a free port.

    Raises:
        UnavailableError: the server cannot listen on the port.
    """
    try:
        server = _Server((host, port), _handler(source, ApiKeys(api_keys)))
    except OSError as error:
        raise UnavailableError(
            f"the page cannot listen on {host}, port {port}: {error}. Choose another port; port=0 takes a free one."
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="millpond-page", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


def _handler(source: PageSource, keys: ApiKeys) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers the requests of one connection."""

        protocol_version = "HTTP/1.1"
        timeout = _TIMEOUT_SECONDS
        # A small answer is sent in one packet, and does not wait for the acknowledgement of an earlier one.
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            file = static_files().get(parts.path)
            if file is not None:
                if self.headers.get("If-None-Match") == file.etag:
                    self._send(304, file.headers, b"")
                else:
                    self._send(200, file.headers, file.body)
                return
            self._answer(lambda: _got(source, parts.path, parts.query))

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
                self.close_connection = True
                self._send_problem(413, "too_large", f"a body needs a Content-Length of at most {_MAX_BODY_BYTES}.")
                return
            body = self.rfile.read(int(length))
            self._answer(lambda: _posted(source, self.path, body))

        def _answer(self, answer: Callable[[], tuple[int, str, bytes]]) -> None:
            given = self.headers.get("Authorization")
            if keys.required and not keys.allow(None if given is None else given.encode("latin-1")):
                self._send_problem(401, "unauthorized", "an API key is needed. Send it as `Authorization: Bearer KEY`.")
                return
            try:
                status, kind, body = answer()
            except MillpondError as error:
                refused = isinstance(error, OptionError | DataError)
                self._send_problem(*((400, "bad_option") if refused else (503, "unavailable")), str(error))
            except Exception as error:
                log.exception("a view of the page failed")
                self._send_problem(500, "internal", f"{type(error).__name__} in the server; its log has the traceback.")
            else:
                self._send(status, {"content-type": kind, "cache-control": "no-store", **GUARDS}, body)

        def _send_problem(self, status: int, code: str, message: str) -> None:
            body = msgspec.json.encode({"error": {"code": code, "message": message}})
            self._send(status, {"content-type": "application/json", **GUARDS}, body)

        def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Do nothing: the page sends a request every second."""

    return Handler


def _got(source: PageSource, path: str, query: str) -> tuple[int, str, bytes]:
    if path == "/metrics":
        return 200, MEDIA_TYPE, prometheus_text(source.families()).encode()
    view = source.views.get(path.removeprefix("/ui/").removesuffix(".json")) if path.startswith("/ui/") else None
    if view is not None:
        given = {name: values[-1] for name, values in parse_qs(query).items()}
        return 200, "application/json", msgspec.json.encode(view(given))
    if source.get is not None:
        got = source.get(path)
        return got.status, "application/json", got.body
    return 404, "application/json", _problem("not_found", f"GET {path[:200]}: there is no such path here.")


def _posted(source: PageSource, path: str, body: bytes) -> tuple[int, str, bytes]:
    if source.post is None:
        return 404, "application/json", _problem("not_found", f"POST {path[:200]}: there is no such path here.")
    posted = source.post(path, body)
    return posted.status, "application/json", posted.body


def _problem(code: str, message: str) -> bytes:
    return msgspec.json.encode({"error": {"code": code, "message": message}})
