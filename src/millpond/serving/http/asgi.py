"""Types that the parts of the service share: a call, a reply, a route."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec

from millpond.serving.http.problems import KINDS, RETRIED, RETRY_AFTER_SECONDS, Failure, Problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON_TYPE: Header = (b"content-type", b"application/json")

ARROW_MEDIA_TYPE = "application/vnd.apache.arrow.stream"

_ENCODE = msgspec.json.Encoder().encode
_RETRY_AFTER: Header = (b"retry-after", str(RETRY_AFTER_SECONDS).encode())


class Call(msgspec.Struct):
    """A call as a route sees it.

    Names of headers are in lower case. `is_reading` is set while the body is awaited.
    """

    scope: Scope
    headers: dict[bytes, bytes]
    receive: Receive
    is_reading: bool = False


class Reply(msgspec.Struct):
    """An answer: its status, its body, and its headers beside those that every answer has."""

    status: int
    headers: list[Header]
    body: bytes


Handler = Callable[[Call], Awaitable[Reply]]


class Route(msgspec.Struct, frozen=True):
    """What one path does, by method.

    Attributes:
        label: its name in metrics and the log.
        handlers: by method; HEAD is answered as GET.
        needs_key: whether a caller must send an API key, if the service has any.
        takes: takes the headers of a POST; returns whether `now` may be called.
        now: takes the whole body of such a POST; returns the body of the answer, or None if that must wait or
            fails.
        now_headers: the headers of such an answer, beside those that every answer has.
    """

    label: str
    handlers: dict[str, Handler]
    needs_key: bool = True
    takes: Callable[[Mapping[bytes, bytes]], bool] | None = None
    now: Callable[[bytes], bytes | None] | None = None
    now_headers: Sequence[Header] = ()


def json_reply(content: object, status: int = 200) -> Reply:
    """Answer with an object as JSON."""
    return Reply(status, [JSON_TYPE], _ENCODE(content))


def problem_reply(code: str, message: str, headers: Iterable[Header] = ()) -> Reply:
    """Answer with a failure."""
    reply = json_reply(Failure(Problem(code, message)), KINDS[code].status)
    reply.headers.extend(headers)
    if reply.status in RETRIED:
        reply.headers.append(_RETRY_AFTER)
    return reply
