"""Fetches that are answered where the server parsed them: bytes in, bytes out.

Place on the data path: between the server's protocol, which has a whole call in its hands, and the route of its
path. All of an answer's head that no call changes is written once.

Invariant: an answer is the one that the application gives to the same call, byte for byte but for its request id.
Whatever waits, fails or is to be refused is None here, and the application says what it is. A test compares both.
"""

import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from millpond.serving.http.asgi import Header, Route

if TYPE_CHECKING:
    from millpond.serving.http.app import HttpApp

WholeCall = Callable[[Sequence[Header], bytes, Any], bytes | None]
"""Takes the headers, in lower case, the body, and host and port of the caller; gives the whole answer, or None."""


def whole_calls(app: "HttpApp", routes: dict[str, Route]) -> dict[bytes, WholeCall]:
    """What answers whole POSTs on a connection that is kept, by path as it is sent."""
    return {path.encode(): _whole_call(app, path, route) for path, route in routes.items() if route.now is not None}


def _whole_call(app: "HttpApp", path: str, route: Route) -> WholeCall:
    status = HTTPStatus.OK
    lines = [b"HTTP/1.1 %d %b" % (status, status.phrase.encode())]
    lines += [b"%b: %b" % header for header in route.now_headers]
    head = b"\r\n".join([*lines, b"content-length: "])
    answer, allows, measures, clock = route.now, app.allows, app.measures, time.perf_counter
    assert answer is not None  # noqa: S101 - `whole_calls` takes no others

    def call(headers: Sequence[Header], body: bytes, client: Any) -> bytes | None:
        began = clock()
        named = dict(headers)
        if not allows(route, headers, named):
            return None
        try:
            answered = answer(named, body)
        except Exception:  # noqa: BLE001 - a read may be asked for again, and then it is told what failed
            return None
        if answered is None:
            return None
        request_id = app.request_id(named)
        seconds = clock() - began
        measures.add(route.label, "POST", status, seconds)
        if app.logs_calls:
            scope = {"method": "POST", "path": path, "client": client}
            app.log_call(scope, status, len(answered), request_id, seconds)
        return b"%b%d\r\nx-request-id: %b\r\n\r\n%b" % (head, len(answered), request_id, answered)

    return call
