"""One HTTP/1.1 call as bytes: the request to send, and the answer read piece by piece.

Place on the data path: between a client's connection and its calls. Both clients use it; only how
they send and receive bytes differs. httptools does the parsing.

Invariant: an answer is returned only when it is whole. A connection is used again only after a whole answer that
allows it.
"""

from collections.abc import Mapping

import msgspec

from millpond.errors import MissingDependencyError


class Answer(msgspec.Struct):
    """A whole answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    keeps_alive: bool


class BrokenAnswerError(Exception):
    """The bytes that came are not HTTP, or ended too early."""


class AnswerReader:
    """Reads one answer from the pieces that arrive on a connection."""

    def __init__(self) -> None:
        try:
            from httptools import HttpParserError, HttpResponseParser
        except ImportError as error:
            raise MissingDependencyError(
                "fetching over HTTP needs the package httptools, which is not installed: "
                "pip install 'millpond[serving]'"
            ) from error
        self._parser = HttpResponseParser(self)
        self._error = HttpParserError
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._is_whole = False
        self._keeps_alive = False

    def feed(self, piece: bytes) -> Answer | None:
        """Take a piece; return the answer once it is whole.

        Raises:
            BrokenAnswerError: the piece is empty, which means that the connection ended, or is not HTTP.
        """
        if not piece:
            raise BrokenAnswerError("the server closed the connection before its answer was whole")
        try:
            self._parser.feed_data(piece)
        except self._error as error:
            raise BrokenAnswerError(f"the answer is no HTTP: {error}") from error
        if not self._is_whole:
            return None
        return Answer(self._parser.get_status_code(), self._headers, b"".join(self._body), self._keeps_alive)

    # Methods that the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Note the end of an answer; an interim one (status 1xx) does not end the call."""
        self._is_whole = self._parser.get_status_code() >= 200  # noqa: PLR2004
        self._keeps_alive = self._parser.should_keep_alive()


def request_head(method: str, path: str, host: str, headers: Mapping[str, str]) -> bytes:
    r"""Return the head of a request up to the value of its content-length, which `request_bytes` adds.

    >>> request_bytes(request_head("GET", "/health", "localhost", {}), b"")
    b'GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n'
    """
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "content-length: "]).encode("latin-1")


def request_bytes(head: bytes, body: bytes) -> bytes:
    """Return a whole request as one piece, so that it leaves in one packet if it fits."""
    return b"%b%d\r\n\r\n%b" % (head, len(body), body)
