"""JSON over HTTP with the standard library: kept connections, a time-out, and typed failures.

The invariant: status 200 gives the whole body, 404 gives None, and everything else raises. If trying again
can help, it is an `UnavailableError` (no connection, time-out, 408, 425, 429, 5xx).

The server may have closed a kept connection meanwhile, which shows only when it is used. Then the request is
sent again on a new connection. This is safe, because the requests change nothing.
"""

import threading
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

import msgspec

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup.sources.json_text import decoded_json
from millpond.masking import masked, split_url, tellable

_PASSING = {408, 425, 429}
_OK, _NOT_FOUND, _SERVER_ERROR = 200, 404, 500


class JsonClient:
    """Sends requests to one server; thread-safe, with one connection for each concurrent request.

    Args:
        url: any URL of the server; only its scheme, host and port are used.
        headers: sent with every request.
        timeout_ms: the longest wait for a connection, and for the next part of an answer.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout_ms: int) -> None:
        parts = split_url(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(f"lookup URL {masked(url)!r}: expected http:// or https:// and a host")
        self._host = parts.hostname
        self._port = parts.port
        self._secure = parts.scheme == "https"
        self._timeout_s = timeout_ms / 1_000
        self._headers = {"Accept": "application/json", **headers}
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the connections, for another process."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_idle", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _idle=[], _lock=threading.Lock())

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def get(self, target: str) -> Any:
        """Return the decoded body at a path and query; None for status 404."""
        return self._ask("GET", target, None)

    def post(self, target: str, body: Any) -> Any:
        """Send a JSON body and return the decoded answer; None for status 404."""
        return self._ask("POST", target, msgspec.json.encode(body))

    def version(self, target: str) -> str | None:
        """Return the strong ETag at a path and query, or else Last-Modified; None without either."""
        response, _ = self._answer("HEAD", target, None)
        etag = response.getheader("ETag")
        known = etag if etag and not etag.startswith("W/") else response.getheader("Last-Modified")
        return known if response.status == _OK else None

    def _ask(self, method: str, target: str, body: bytes | None) -> Any:
        response, text = self._answer(method, target, body)
        return self._body(f"{method} {self._host}{masked(target)}", response.status, text)

    def _answer(self, method: str, target: str, body: bytes | None) -> tuple[HTTPResponse, bytes]:
        where = f"{method} {self._host}{masked(target)}"
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        for connection in [kept, self._new()] if kept is not None else [self._new()]:
            try:
                connection.request(method, target, body, headers)
                response = connection.getresponse()
                text = response.read()
            except (HTTPException, OSError) as error:
                connection.close()
                if connection is kept and not isinstance(error, TimeoutError):
                    continue
                told = f"{type(error).__name__}: {masked(error)}"
                raise UnavailableError(f"{where}: no answer ({told})") from tellable(error)
            with self._lock:
                self._idle.append(connection)
            return response, text
        raise AssertionError("a new connection answers or raises")

    def _new(self) -> HTTPConnection:
        kind = HTTPSConnection if self._secure else HTTPConnection
        return kind(self._host, self._port, timeout=self._timeout_s)

    def _body(self, where: str, status: int, text: bytes) -> Any:
        if status == _NOT_FOUND:
            return None
        if status in _PASSING or status >= _SERVER_ERROR:
            raise UnavailableError(f"{where}: status {status}: {_beginning(text)}")
        if status != _OK:
            raise DataError(
                f"{where}: expected status 200, or 404 where there is nothing, got {status}: {_beginning(text)}; check "
                "the URL and the headers"
            )
        return decoded_json(where, text)


def _beginning(text: bytes) -> str:
    return masked(repr(text[:200].decode(errors="replace")))
