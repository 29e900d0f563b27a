"""Connections: how many there may be, and how long one may do nothing.

Place on the data path: between uvicorn's HTTP protocol and the application. uvicorn parses and writes. This
module adds what uvicorn lacks: limits for callers who connect and send nothing, send the head of a call
byte by byte, or do not read their answer.

Invariant: however many connections are opened, at most `max_connections` stay, or fewer if the process may not
open enough files (`open_files`). A new connection is let in as long as there is one that the service is not
working for. So a caller who sends slowly, or nothing, keeps nobody out. A connection changes its phase within
the limit, or is closed.

Idea: a connection does nothing for this in a call. Once a second all connections are checked. If the phase of one
did not change since the last check, it has been in it for that long.

| phase   | until                          | limit                             |
|---------|--------------------------------|-----------------------------------|
| opening | the head of the first call     | `head_timeout_ms`                 |
| sending | the body of the call is there  | twice `timeout_ms`; then reset    |
| calling | the answer is written          | twice `timeout_ms`; then reset    |
| idle    | the head of the next call      | `idle_timeout_ms`                 |
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from millpond.serving.http.asgi import problem_reply
from millpond.serving.http.limits import Limits

if TYPE_CHECKING:
    from uvicorn import Server

LOOK_SECONDS = 1.0
"""Seconds between two checks of the connections."""

Phase = Literal["opening", "sending", "calling", "idle"]

_CLOSED_AT_ONCE = 20
"""At the limit, a twentieth of the connections is closed: so one search for the oldest frees room for many."""

log = logging.getLogger("millpond.serving")


class Connections:
    """All connections of a server; for one event loop.

    Args:
        limits: how long a connection may do nothing.
        clock: monotonic milliseconds.
        most: how many connections there may be at once.
    """

    def __init__(self, limits: Limits, clock: Callable[[], int], most: int) -> None:
        self.most = most
        self._clock = clock
        self._open: dict[Any, tuple[Phase, object, int]] = {}
        self._allowed_ms: dict[Phase, int] = {
            "opening": limits.head_timeout_ms,
            "sending": 2 * limits.timeout_ms,
            "calling": 2 * limits.timeout_ms,
            "idle": limits.idle_timeout_ms,
        }

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Any) -> bool:
        """Take a new connection in, and close those idle longest if there is no room; False if there still is none."""
        if len(self._open) >= self.most:
            self._close_idle()
        if len(self._open) >= self.most:
            return False
        self._open[connection] = ("opening", None, self._clock())
        return True

    def remove(self, connection: Any) -> None:
        """Forget a connection that was closed."""
        self._open.pop(connection, None)

    def look(self) -> None:
        """Close the connections that have been in one phase for too long."""
        now_ms = self._clock()
        for connection, (phase, cycle, since_ms) in list(self._open.items()):
            present, present_cycle = _phase(connection)
            if present != phase or present_cycle is not cycle:
                self._open[connection] = (present, present_cycle, now_ms)
            elif now_ms - since_ms >= self._allowed_ms[phase]:
                self._end(connection, phase)

    async def watch(self) -> None:
        """Check the connections once per `LOOK_SECONDS`."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def _end(self, connection: Any, phase: Phase) -> None:
        if phase in ("sending", "calling"):
            # The caller may not be reading the answer: closing would wait for that.
            connection.transport.abort()
        else:
            connection.transport.close()
        self.remove(connection)

    def _close_idle(self) -> None:
        self.look()
        idle = sorted(
            (since_ms, place) for place, (phase, _, since_ms) in enumerate(self._open.values()) if phase != "calling"
        )
        connections = list(self._open)
        closed = idle[: max(1, len(connections) // _CLOSED_AT_ONCE)]
        for _, place in closed:
            connections[place].transport.abort()
            self.remove(connections[place])
        if closed:
            fields = {"closed": len(closed), "most": self.most}
            log.warning("idle connections were closed to let others in", extra={"fields": fields})


def _phase(connection: Any) -> tuple[Phase, object]:
    """Return the phase of a connection, and the call that the phase belongs to."""
    cycle = connection.cycle
    if cycle is None:
        return "opening", None
    if cycle.response_complete:
        return "idle", cycle
    return ("sending" if cycle.more_body else "calling"), cycle


def protocol_class(connections: Connections, limits: Limits) -> type[asyncio.Protocol]:
    """Return a subclass of uvicorn's HTTP protocol that reports to `connections` and bounds the head of a call.

    httptools parses if it is installed, h11 otherwise.
    """
    parent: Any
    try:
        from millpond.serving.http.running.httptools_calls import HttpToolsCalls as parent  # noqa: N813
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as parent  # noqa: N813

    class BoundedProtocol(parent):  # type: ignore[misc]
        """One connection."""

        _head_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if not connections.admit(self):
                log.warning("a connection was refused", extra={"fields": {"open": connections.most}})
                self._refuse("unavailable", f"{connections.most} connections are open, the most that may be.")

        def connection_lost(self, exc: Exception | None) -> None:
            connections.remove(self)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            cycle = self.cycle
            super().data_received(data)
            if self.cycle is cycle and (cycle is None or cycle.response_complete):
                self._head_bytes += len(data)
                if self._head_bytes > limits.max_head_bytes and not self.transport.is_closing():
                    self._refuse("head_too_large", f"the head of the call is over {limits.max_head_bytes} bytes.")
            else:
                self._head_bytes = 0

        def eof_received(self) -> bool:
            # A caller who has finished sending may still read: a whole call is answered before the connection ends.
            cycle = self.cycle
            if cycle is None or cycle.response_complete or cycle.more_body:
                return False
            cycle.keep_alive = False
            return True

        def send_400_response(self, msg: str) -> None:
            self._refuse("bad_request", f"this is not HTTP/1.1: {msg}")

        def _refuse(self, code: str, message: str) -> None:
            reply = problem_reply(code, message)
            head = [
                b"HTTP/1.1 %d refused" % reply.status,
                b"content-length: %d" % len(reply.body),
                b"connection: close",
            ]
            head += [name + b": " + value for name, value in reply.headers]
            self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + reply.body)
            self.transport.close()

    return BoundedProtocol


def close_all(server: "Server") -> None:
    """Abort every connection of a server that must end at once."""
    for connection in list(server.server_state.connections):
        connection.transport.abort()
