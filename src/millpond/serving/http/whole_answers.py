"""An answer as one write: its head waits for its body.

Place on the data path: between uvicorn's cycle of one call, which writes head and body one after the
other, and the connection. uvloop sends each write at once. So a small answer would cost two system calls
and two packets, and would wake its caller twice, the first time for nothing.

Invariant: what is written is what would have been written, in the same order; only the head of an answer
ever waits, and only for the next write or the end.
"""

from typing import Any


class WholeAnswer:
    """What the cycle of one call has for a transport.

    Args:
        transport: the connection.
        cycle: the call; its `response_started` tells an answer's head from an interim answer before it.
    """

    __slots__ = ("_cycle", "_head", "_transport", "_waits")

    def __init__(self, transport: Any, cycle: Any) -> None:
        self._transport = transport
        self._cycle = cycle
        self._head = b""
        self._waits = True

    def write(self, data: bytes) -> None:
        """Send; or keep the head until there is more."""
        if not self._waits:
            self._transport.write(data)
        elif self._head:
            self._waits = False
            self._transport.write(self._head + data)
        elif self._cycle.response_started:
            self._head = data
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send what waits, and close the connection."""
        if self._waits and self._head:
            self._waits = False
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is being closed."""
        closing: bool = self._transport.is_closing()
        return closing
