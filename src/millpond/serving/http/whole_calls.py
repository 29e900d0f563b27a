"""Fetches that are answered where the server parsed them: bytes in, bytes out.

Place on the data path: between the server's protocol, which holds a whole call, and the route of its path. The
constant part of an answer's head is written once. What depends only on the head of a call is decided once
for all calls with the same head.

Invariant: an answer equals, byte for byte except for the request id, the application's answer to the same call.
For a call that must wait, fails or must be refused the result is None, and the application answers it. A test
compares both.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from millpond.serving.http.asgi import Header, Route

if TYPE_CHECKING:
    from millpond.serving.http.app import HttpApp

WholeCall = Callable[[bytes], bytes | None]
"""Takes the body of a call; returns the whole answer, or None."""

WholeCalls = Callable[[Sequence[Header], Any], WholeCall | None]
"""Takes the headers of a call, in lower case, and host and port of the caller. Returns the function that answers calls
with this head on a connection that is kept open, or None if the application must answer."""


def whole_calls(app: "HttpApp", routes: dict[str, Route]) -> dict[bytes, WholeCalls]:
    """Return what answers whole POSTs, by the path as it is sent."""
    return {path.encode(): _of_route(app, path, route) for path, route in routes.items() if route.now is not None}


def _of_route(app: "HttpApp", path: str, route: Route) -> WholeCalls:
    lines = [b"HTTP/1.1 200 OK", *(b"%b: %b" % header for header in route.now_headers)]
    head = b"\r\n".join([*lines, b"content-length: "])
    takes, answer, measures, clock = route.takes, route.now, app.measures, time.perf_counter
    assert takes is not None  # noqa: S101 - `whole_calls` takes no others
    assert answer is not None  # noqa: S101 - likewise

    def of_head(headers: Sequence[Header], client: Any) -> WholeCall | None:
        named = dict(headers)
        if not (takes(named) and app.allows(route, headers, named)):
            return None
        given_id = app.given_id(named)
        scope = {"method": "POST", "path": path, "client": client}

        def call(body: bytes) -> bytes | None:
            began = clock()
            try:
                answered = answer(body)
            except Exception:  # noqa: BLE001 - a read can be repeated, and the application then reports the failure
                return None
            if answered is None:
                return None
            request_id = given_id or app.new_id()
            seconds = clock() - began
            measures.add(route.label, "POST", 200, seconds)
            if app.logs_calls:
                app.log_call(scope, 200, len(answered), request_id, seconds)
            return b"%b%d\r\nx-request-id: %b\r\n\r\n%b" % (head, len(answered), request_id, answered)

        return call

    return of_head
