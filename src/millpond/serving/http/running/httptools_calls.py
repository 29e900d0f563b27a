"""Uvicorn's protocol over httptools, with less work per call.

Place on the data path: between the connection and the application, if httptools is installed. uvicorn
still parses, pipelines and controls the flow. What it does once per call is replaced:

- The head of an answer waits for its body, and both are one write. Two writes would be two system calls
  and two packets, and would wake the caller twice, the first time for nothing.
- A whole call that the application answers without waiting (`whole_calls`) is answered where it was parsed, without
  a scope, a cycle and a task. This is done once per arrival of bytes, so that other connections get their turn.
- A head that the connection has seen before, byte for byte, is not parsed again: the result would be the same. The
  calls of a program usually have such heads.
- No timer is set and cancelled: `connections` closes idle connections.
- Reading stops while calls that a caller sent ahead are waiting for their answers.
- A call that offers to change the protocol (`Upgrade: h2c`, as Java's HTTP client does with every call) is answered
  as any other. uvicorn loses its body, and cannot read what follows on the connection.
- Names and values of headers are not searched for line ends: all of them are the service's own, except
  the request id, which the application checks.

Invariant: what is written is what uvicorn would have written, in the same order. uvicorn itself writes an answer in
several parts, an answer to HEAD, and one that the connection cannot take at once.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from millpond.serving.http.whole_calls import WholeCall, WholeCalls

_HEAD_END = b"\r\n\r\n"
_MOST_HEADS = 8
"""How many heads a connection remembers: the heads of one program differ only in the length of the body."""

_MOST_HEAD_BYTES = 1_024
"""The longest head that is remembered: there may be thousands of connections."""


class WholeAnswerCycle(RequestResponseCycle):
    """One call; its answer is written in one piece if it is sent as one."""

    _start: Any = None

    async def receive(self) -> Any:
        """Return the body without waiting if it has fully arrived."""
        if self.more_body or self.waiting_for_100_continue or not self.message_event.is_set():
            return await super().receive()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        self.message_event.clear()
        body, self.body = self.body, bytearray()
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    async def send(self, message: Any) -> None:
        """Keep the head of an answer; write it with the body."""
        if message["type"] == "http.response.start" and not self.response_started:
            self._start = message
            return
        start, self._start = self._start, None
        if start is not None:
            if (
                message.get("more_body", False)
                or self.disconnected
                or self.flow.write_paused
                or self.scope["method"] == "HEAD"
            ):
                await super().send(start)
            else:
                self.write_whole(start["status"], start["headers"], message["body"])
                return
        await super().send(message)

    def write_whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Write head and body in one piece, and end the call."""
        self.response_started = self.response_complete = True
        parts = [STATUS_LINE[status]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        parts.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        parts.append(body)
        self.transport.write(b"".join(parts))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class Answered:
    """A call that was answered whole, with the attributes that uvicorn and `connections` read of the latest call."""

    __slots__ = ()
    response_complete = True
    message_event = asyncio.Event()
    """Nobody waits for it; uvicorn sets it when a connection is lost."""


class HttpToolsCalls(HttpToolsProtocol):
    """Uvicorn's protocol with a `WholeAnswerCycle` for each call that is not answered whole."""

    _unstarted: WholeAnswerCycle | None = None
    _may_answer_now = False
    _whole_call: WholeCall | None = None
    """The function that answers the present call if it turns out to be whole; `_body` is what came of its body."""

    _body = b""
    _whole_calls: Mapping[bytes, WholeCalls] = {}
    _has_whole_calls = True
    """Whether the bytes so far were whole calls, so that the parser is between two calls."""

    _tried: tuple[WholeCall, bytes] | None = None
    """The function that was called to answer the bytes that came in, and the body it was given."""

    _offers_upgrade = False
    """Whether the present call offers another protocol: then it is parsed again without that offer."""

    _heads: dict[bytes, tuple[int, WholeCall]]
    """The latest heads of whole calls; for each the length of the body and the function that answers such calls."""

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        super().connection_made(transport)
        self._whole_calls = getattr(self.app, "whole_calls", {})
        self._heads = {}

    def data_received(self, data: bytes) -> None:
        """Parse what came in, and start a call whose body is not whole yet."""
        had_whole_calls = self._has_whole_calls
        if had_whole_calls and self._heads and self._answer_alike(data):
            return
        self._has_whole_calls, self._tried = False, None
        self._may_answer_now = True
        self._parse(data)
        if self._whole_call is not None:
            self._begin_after_all()
        cycle, self._unstarted = self._unstarted, None
        if cycle is not None:
            self._start(cycle, self.app)
        if had_whole_calls and self._tried is not None:
            self._note(data, *self._tried)

    def _parse(self, data: bytes) -> None:
        """Parse what came in. After a head that offers another protocol, begin again without that offer."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offered:
                data = self._head_without_upgrade() + data[offered.args[0] :]
                self._offers_upgrade = False
                self.parser = httptools.HttpRequestParser(self)
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        """Return the head that was parsed last, without its offer of another protocol."""
        parser = self.parser
        lines = [b"%b %b HTTP/%b" % (parser.get_method(), self.url, parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _answer_alike(self, data: bytes) -> bool:
        """Answer a call whose head is known byte for byte, without parsing it."""
        end = data.find(_HEAD_END)
        known = self._heads.get(data[:end])
        if known is None or not self.cycle.response_complete or self.flow.write_paused or self.transport.is_closing():
            return False
        body_bytes, call = known
        body = data[end + len(_HEAD_END) :]
        whole = call(body) if len(body) == body_bytes else None
        if whole is not None:
            self._write(whole)
        return whole is not None

    def _note(self, data: bytes, call: WholeCall, body: bytes) -> None:
        """Remember the head of a call if the data is exactly this head and body."""
        head, _, rest = data.partition(_HEAD_END)
        if rest != body:
            return
        self._has_whole_calls = True
        if len(head) <= _MOST_HEAD_BYTES:
            if len(self._heads) == _MOST_HEADS:
                self._heads.clear()
            self._heads[head] = len(body), call

    def _write(self, whole: bytes) -> None:
        self.cycle = Answered()  # type: ignore[assignment]  # as much of a cycle as is looked at
        self.server_state.total_requests += 1
        self.transport.write(whole)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        if self._whole_call is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        """Answer the call at once if that needs no waiting; else start it."""
        if self._offers_upgrade:
            return
        call = self._whole_call
        if call is not None:
            self._may_answer_now = False
            self._tried = call, self._body
            whole = call(self._body)
            if whole is not None:
                self._whole_call = None
                self._write(whole)
                return
            self._begin_after_all()
        super().on_message_complete()
        cycle, self._unstarted = self._unstarted, None
        if cycle is not None:
            self._start(cycle, self.app)

    def on_message_begin(self) -> None:
        """Begin a call."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        """Wait for the rest of a call that may be answered whole; begin any other."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._offers_upgrade = True
            return
        of_head = self._whole_calls.get(self.url)
        if of_head is not None and self._may_answer_now and self._is_simple():
            self._whole_call, self._body = of_head(self.headers, self.client), b""
        if self._whole_call is None:
            self._begin()

    def _is_simple(self) -> bool:
        """Return whether an answer to this call could be written at once, and the call needs nothing else."""
        parser, former = self.parser, self.cycle
        return (
            (former is None or former.response_complete)
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not (self.expect_100_continue or self.flow.write_paused or self.transport.is_closing())
        )

    def _begin_after_all(self) -> None:
        """Begin a call that turned out not to be whole, or that the application must answer."""
        self._whole_call = None
        self._begin()
        if self._body:
            super().on_body(self._body)

    def _begin(self) -> None:
        """Start the application, or queue the call behind the one before it."""
        version = self.parser.get_http_version()
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "headers": self.headers,
            "method": self.parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
        }
        former: Any = self.cycle
        cycle = self.cycle = WholeAnswerCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if former is None or former.response_complete:
            self._unstarted = cycle
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_response_complete(self) -> None:
        """Continue with the next call that waits."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start(*self.pipeline.pop())
        else:
            self.flow.resume_reading()

    def _start(self, cycle: RequestResponseCycle, app: Any) -> None:
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
