"""The service: a plain ASGI application over a fetcher.

Place on the data path: between the fetcher and a model in another process.

    POST /v1/fetch/{name}   the features of some keys of a GroupBy or Join, as JSON or Arrow
    GET  /v1/fetch/{name}   the types of this GroupBy or Join: keys, context and features
    GET  /v1/group_bys      all GroupBys, each with the batch that is served
    GET  /v1/joins          all Joins, each with the batches of its parts
    GET  /v1/stats          the fetcher's counts
    GET  /v1/caches         the caches, with their hit-rate curves and the advice on them
    GET  /health            200 while the process is alive
    GET  /ready             200 while the store answers and every GroupBy has a batch
    GET  /metrics           counts, as Prometheus reads them
    GET  /openapi.json      all of the above in OpenAPI 3.1
    GET  /                  the web page, with its files and documents below /ui

Invariant: every call is answered once. A failure is a JSON body with a code and a message, and the status
that `problems` gives it. An `errors` within a result comes from the fetcher: the call was right, but a value
could not be answered.

Trade-off: no framework stands between the server and the routes. A call for one key makes no timer, no
thread, and no object that its route could have prepared. If the store is in this process and the server asks for
`whole_calls`, the call makes no task either.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

from millpond.api_keys import ApiKeys
from millpond.cache import monotonic_ms
from millpond.errors import MillpondError
from millpond.metrics.families import Family
from millpond.serving.http.asgi import Call, Handler, Header, Receive, Reply, Route, Scope, Send, problem_reply
from millpond.serving.http.calls import Calls
from millpond.serving.http.fetcher_families import fetcher_families
from millpond.serving.http.in_flight import InFlight
from millpond.serving.http.limits import Limits
from millpond.serving.http.measures import CallMeasures
from millpond.serving.http.problems import RefusedError, code_of
from millpond.serving.http.routes import OtherProcesses, routes_of
from millpond.serving.http.served import Served
from millpond.serving.http.whole_calls import whole_calls

_CLOSE: Header = (b"connection", b"close")
_CHALLENGE: Header = (b"www-authenticate", b"Bearer")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.:/+=-]{1,128}")
_MAX_HEADERS = 100
_MAX_DISCARDED_BYTES = 16 << 20
_DISCARDING_SECONDS = 2.0

log = logging.getLogger("millpond.serving")
access_log = logging.getLogger("millpond.access")


def http_app(
    fetcher: Served,
    *,
    limits: Limits | None = None,
    api_keys: Iterable[str] = (),
    log_calls: bool = False,
    clock: Callable[[], int] = monotonic_ms,
) -> "HttpApp":
    """Return the ASGI application that serves a fetcher; run it with `serve`, `running_server`, or any ASGI server.

    Args:
        fetcher: what answers.
        limits: the limits on one caller; None for the defaults of `Limits`.
        api_keys: the API keys, one of which a caller must send; without any, every caller is let in.
        log_calls: whether each call is logged, at level INFO to the logger `millpond.access`.
        clock: monotonic milliseconds.
    """
    return HttpApp(fetcher, limits or Limits(), ApiKeys(api_keys), log_calls=log_calls, clock=clock)


class HttpApp:
    """The ASGI application, made by `http_app`; for one event loop.

    `draining` says that the server is stopping. `process` is the number of this process among those that
    share a port, None if it is alone. `other_processes` returns the counts of the others. `whole_calls` answers
    calls without a task.
    """

    def __init__(
        self, fetcher: Served, limits: Limits, api_keys: ApiKeys, *, log_calls: bool, clock: Callable[[], int]
    ) -> None:
        self.fetcher = fetcher
        self.limits = limits
        self.api_keys = api_keys
        self.clock = clock
        self.draining = False
        self.process: str | None = None
        self.other_processes: OtherProcesses = _no_others
        self.open_connections: Callable[[], int] = int
        self.calls = Calls(limits.timeout_ms, clock)
        self.in_flight = InFlight(limits)
        self.measures = CallMeasures()
        self.logs_calls = log_calls
        self._ids = count()
        self._id_prefix = f"{secrets.token_hex(4)}-".encode()
        self._routes = routes_of(self)
        self._nowhere = Route("other", {}, needs_key=False)
        self.whole_calls = whole_calls(self, self._routes)

    def families(self) -> list[Family]:
        """Return all that this process counts."""
        connections = self.open_connections()
        return [
            *self.measures.families(in_flight=self.in_flight.count, connections=connections),
            *fetcher_families(self.fetcher.stats()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call, as ASGI asks."""
        if scope["type"] != "http":
            await _answer_no_http(scope, receive, send)
            return
        began = time.perf_counter()
        headers = dict(scope["headers"])
        route = self._routes.get(scope["path"], self._nowhere)
        request_id = self.given_id(headers) or self.new_id()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - ASGI servers run applications in tasks
        self.calls.begin(task)
        try:
            has_more = False
            call = Call(scope, headers, receive)
            try:
                reply = await self._handler(route, call)(call)
            except asyncio.CancelledError:
                if task not in self.calls.expired:
                    raise
                task.uncancel()
                reply, has_more = self._timed_out(call), call.is_reading
            except RefusedError as refusal:
                reply, has_more = problem_reply(refusal.code, refusal.message, refusal.headers), refusal.closing
            except MillpondError as error:
                reply = problem_reply(code_of(error), str(error))
            except Exception as error:
                log.exception("a call failed", extra={"fields": {"request_id": request_id.decode()}})
                message = (
                    f"{type(error).__name__} in the server; its log has the traceback under {request_id.decode()}."
                )
                reply = problem_reply("internal", message)
            start = {
                "type": "http.response.start",
                "status": reply.status,
                "headers": self._head(reply, request_id),
            }
            if has_more:
                await _send_and_discard(start, reply, receive, send)
            else:
                await send(start)
                await send({"type": "http.response.body", "body": reply.body})
        finally:
            self.calls.end(task)
        seconds = time.perf_counter() - began
        self.measures.add(route.label, scope["method"], reply.status, seconds)
        if self.logs_calls:
            self.log_call(scope, reply.status, len(reply.body), request_id, seconds)

    def allows(self, route: Route, given: Sequence[Header], headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the head of a call is allowed: it has few enough headers, and an API key if one is needed.

        Args:
            route: the route of the call's path.
            given: the headers.
            headers: the headers by name.
        """
        if len(given) > _MAX_HEADERS:
            return False
        keys = self.api_keys
        return not (route.needs_key and keys.required) or keys.allow(headers.get(b"authorization"))

    def _handler(self, route: Route, call: Call) -> Handler:
        """Return the handler of a call; raise `RefusedError` if the call is refused."""
        scope = call.scope
        method = scope["method"]
        handler = route.handlers.get(method)
        if handler is None and method == "HEAD":
            handler = route.handlers.get("GET")
        if len(scope["headers"]) > _MAX_HEADERS:
            raise RefusedError("head_too_large", f"the call has over {_MAX_HEADERS} headers.", closing=True)
        if route.needs_key and self.api_keys.required and not self.api_keys.allow(call.headers.get(b"authorization")):
            message = "an API key is needed. Send it as `Authorization: Bearer KEY`."
            raise RefusedError("unauthorized", message, closing=_may_be_long(call), headers=[_CHALLENGE])
        if handler is None:
            raise self._no_handler(route, call)
        return handler

    def _no_handler(self, route: Route, call: Call) -> RefusedError:
        method, path = call.scope["method"], call.scope["path"][:200]
        closing = _may_be_long(call)
        if route.handlers:
            allowed = ", ".join(sorted(route.handlers))
            message = f"{method} {path}: this path takes {allowed}."
            return RefusedError("method_not_allowed", message, closing=closing, headers=[(b"allow", allowed.encode())])
        name = path.removeprefix("/v1/fetch/")
        if name != path:
            served = sorted(self.fetcher.targets)
            message = f"no GroupBy or Join {name!r} is served here; served are {served}."
            return RefusedError("not_served", message, closing=closing)
        return RefusedError("not_found", f"{method} {path}: there is no such path; see /openapi.json.", closing=closing)

    def _timed_out(self, call: Call) -> Reply:
        if call.is_reading:
            return problem_reply("too_slow", f"the body did not come within {self.limits.timeout_ms} ms.")
        message = f"the call took over {self.limits.timeout_ms} ms. Send less in one call, or try again."
        return problem_reply("timed_out", message)

    @staticmethod
    def _head(reply: Reply, request_id: bytes) -> list[Header]:
        return [*reply.headers, (b"content-length", b"%d" % len(reply.body)), (b"x-request-id", request_id)]

    def given_id(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """Return the caller's own id of a call; None if there is none that may be copied into an answer."""
        given = headers.get(b"x-request-id")
        return given if given is not None and _REQUEST_ID.fullmatch(given) else None

    def new_id(self) -> bytes:
        """Return an id for a call that has none."""
        return b"%b%x" % (self._id_prefix, next(self._ids))

    def log_call(self, scope: Scope, status: int, size: int, request_id: bytes, seconds: float) -> None:
        """Log a call that ended; `size` is the bytes of its answer's body."""
        client = scope.get("client")
        fields = {
            "request_id": request_id.decode(),
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1_000, 3),
            "bytes": size,
            "client": client[0] if client else None,
        }
        access_log.info("call", extra={"fields": fields})


def _may_be_long(call: Call) -> bool:
    """Return whether the unread body of a refused call may be too long to be read to its end."""
    return b"transfer-encoding" in call.headers or len(call.headers.get(b"content-length", b"")) > len("65536")


async def _no_others() -> dict[str, list[Family]]:
    return {}


async def _send_and_discard(start: dict[str, object], reply: Reply, receive: Receive, send: Send) -> None:
    """Answer a call whose body was not read, and close its connection.

    If a connection is closed while the caller still sends, it is reset, and the answer may be lost. So the rest
    of the body is read and thrown away, for a while, before the connection is closed.
    """
    start["headers"] = [*start["headers"], _CLOSE]  # type: ignore[misc]
    await send(start)
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    discarded = 0
    try:
        async with asyncio.timeout(_DISCARDING_SECONDS):
            while discarded <= _MAX_DISCARDED_BYTES:
                message = await receive()
                discarded += len(message.get("body", b""))
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})


async def _answer_no_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Take part in the server's start and stop; refuse web sockets."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
