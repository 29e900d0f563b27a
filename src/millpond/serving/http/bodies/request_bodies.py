"""Reads the bodies of calls, within the limits of one body and of all bodies together.

Place on the data path: after the head of a call, before it is decoded. Invariant: the bytes that a process holds of
bodies that are still coming in are bounded, however many callers send however slowly.
"""

from millpond.serving.http.asgi import Call, Message
from millpond.serving.http.limits import Limits
from millpond.serving.http.problems import RefusedError

_MAX_DIGITS = 18
_BODIES_AT_ONCE = 64
"""The bodies that are still coming in may together be as large as this many bodies of the largest size."""


class RequestBodies:
    """Reads bodies; for one event loop. `incoming_bytes` counts the bytes held of bodies that are not complete."""

    def __init__(self, limits: Limits) -> None:
        self._max_bytes = limits.max_body_bytes
        self._max_incoming_bytes = _BODIES_AT_ONCE * limits.max_body_bytes
        self.incoming_bytes = 0

    def check(self, call: Call) -> None:
        """Check a body by the headers of its call.

        Raises:
            RefusedError: it is too large, or compressed.
        """
        length = call.headers.get(b"content-length")
        if length is not None and (len(length) > _MAX_DIGITS or int(length) > self._max_bytes):
            raise self._too_large(has_more=True)
        if b"content-encoding" in call.headers:
            raise RefusedError("unsupported_media_type", "the body is compressed. Send it as it is.", closing=True)

    def whole(self, message: Message) -> bytes | None:
        """Return the body if one message has all of it, as in almost every call; else None.

        Raises:
            RefusedError: it is too large.
        """
        if message["type"] != "http.request" or message.get("more_body", False):
            return None
        body: bytes = message.get("body", b"")
        if len(body) > self._max_bytes:
            raise self._too_large(has_more=False)
        return body

    async def read_on(self, call: Call, message: Message) -> bytes:
        """Return the body of which `message` is the first part.

        Raises:
            RefusedError: it is too large, or was not sent to its end, or too many others are coming in.
        """
        body = bytearray()
        try:
            while message["type"] == "http.request":
                part = message.get("body", b"")
                body += part
                self.incoming_bytes += len(part)
                has_more = message.get("more_body", False)
                if len(body) > self._max_bytes:
                    raise self._too_large(has_more=has_more)
                if self.incoming_bytes > self._max_incoming_bytes:
                    raise RefusedError(
                        "unavailable", "too many bodies are coming in at once. Try again.", closing=has_more
                    )
                if not has_more:
                    return bytes(body)
                message = await call.receive()
        finally:
            self.incoming_bytes -= len(body)
        raise RefusedError("bad_request", "the connection ended before the body did.")

    def _too_large(self, *, has_more: bool) -> RefusedError:
        return RefusedError(
            "too_large",
            f"the body is over {self._max_bytes} bytes. Send the requests in several calls.",
            closing=has_more,
        )
