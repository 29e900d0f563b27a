"""The fetcher as a web service: JSON in, JSON out.

Place on the data path: between the fetcher and a model in another process.

    POST /v1/fetch/{group_by}   {"requests": [{"keys": {"origin": "EWR"}, "at": 1388361600000}]}
                             -> {"results": [{"keys": ..., "features": ..., "batch_end_ms": ...}]}, in the order
                                of the requests
    GET  /v1/group_bys          what is served: keys, features, and the batch of each GroupBy
    GET  /v1/stats              the fetcher's counts
    GET  /health                200 while the store answers

Invariant: every answer is JSON, and every failure is `{"error": {"code", "message"}}` with a status that
says what to do: 4xx change the request, 503 try again, 500 call somebody. An `error` within a result is
the fetcher's own: the call was right, but this key could not be answered.

Trade-off: a fetch runs on a thread, for the store's client blocks; so one slow call does not hold up
the others, and the threads of the pool (40) bound the calls in flight.
"""

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millpond.errors import (
    CorruptionError,
    DataError,
    MillpondError,
    MissingDependencyError,
    OptionError,
    UnavailableError,
)
from millpond.features import ServingInfo
from millpond.serving.fetcher import Fetcher
from millpond.serving.messages import FetchRequest, FetchResponse, ValueState

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_T = TypeVar("_T")

MAX_BODY_BYTES = 1 << 20
"""The largest body of a request; some ten thousand keys."""


class FetchItem(msgspec.Struct, forbid_unknown_fields=True):
    """One request in the body of a fetch."""

    keys: dict[str, Any]
    at: int | None = None


class FetchBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a fetch."""

    requests: list[FetchItem]


class FetchResults(msgspec.Struct):
    """The answer to a fetch, in the order of its requests."""

    results: list[FetchResponse]


class Problem(msgspec.Struct):
    """Why a call failed."""

    code: str
    message: str


class ServedGroupBy(msgspec.Struct):
    """One GroupBy as a client needs to know it; the batch is None until one is uploaded."""

    name: str
    definition_hash: str
    keys: dict[str, str]
    features: tuple[str, ...]
    batch_end_ms: int | None
    batch_landing_ms: int | None


_STATUS: tuple[tuple[type[MillpondError], int, str], ...] = (
    (DataError, 400, "bad_request"),
    (OptionError, 400, "bad_request"),
    (UnavailableError, 503, "unavailable"),
    (CorruptionError, 500, "corrupt"),
    (MillpondError, 500, "internal"),
)
"""What each kind of error is to a client; the first that fits."""


def http_app(fetcher: Fetcher, *, max_body_bytes: int = MAX_BODY_BYTES) -> "Starlette":
    """The Starlette app that serves a fetcher; run it with `serve`, `running_server`, or any ASGI server.

    Raises `MissingDependencyError` if starlette is not installed.

    >>> from millpond.kv import MemoryStore
    >>> [route.path for route in http_app(Fetcher(MemoryStore(), [])).routes]
    ['/v1/fetch/{group_by:path}', '/v1/group_bys', '/v1/stats', '/health']
    """
    try:
        from anyio import to_thread
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError as error:
        raise MissingDependencyError(
            "serving over HTTP needs the package starlette, which is not installed: pip install 'millpond[serving]'"
        ) from error

    async def on_a_thread(act: Callable[..., _T], *arguments: object) -> _T:
        # Abandoned, not awaited, when the server is told to stop: a store that hangs must not hold it up.
        return await to_thread.run_sync(act, *arguments, abandon_on_cancel=True)

    async def fetch(request: "Request") -> "Response":
        group_by = request.path_params["group_by"]
        if group_by not in fetcher.plans:
            served = sorted(fetcher.plans)
            return _problem(404, "unknown_group_by", f"no GroupBy {group_by!r} is served here; served are {served}.")
        content = await _read(request, max_body_bytes)
        if content is None:
            message = f"the body is over {max_body_bytes} bytes. Send the requests in several calls."
            return _problem(413, "too_large", message, {"Connection": "close"})
        body = _decode(content)
        requests = [FetchRequest(group_by, item.keys, item.at) for item in body.requests]
        responses = await on_a_thread(fetcher.fetch_many, requests)
        return _json(FetchResults([_writable(response) for response in responses]))

    async def group_bys(_request: "Request") -> "Response":
        infos = await on_a_thread(fetcher.serving_infos)
        return _json({"group_bys": [_served(fetcher, name, info) for name, info in infos.items()]})

    async def stats(_request: "Request") -> "Response":
        return _json(fetcher.stats())

    async def health(_request: "Request") -> "Response":
        await on_a_thread(fetcher.serving_infos)
        return _json({"status": "ok"})

    return Starlette(
        routes=[
            Route("/v1/fetch/{group_by:path}", fetch, methods=["POST"]),
            Route("/v1/group_bys", group_bys),
            Route("/v1/stats", stats),
            Route("/health", health),
        ],
        exception_handlers={MillpondError: _on_error, HTTPException: _on_wrong_path, Exception: _on_bug},
    )


async def _read(request: "Request", max_bytes: int) -> bytes | None:
    """The body, or None as soon as it is known to be too large, not once it is in memory."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            return None
    return bytes(body)


def _decode(body: bytes) -> FetchBody:
    try:
        return msgspec.json.decode(body, type=FetchBody)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(
            f"the body is not what a fetch takes: {error}. "
            'Expected {"requests": [{"keys": {"name": value}, "at": milliseconds}]}.'
        ) from error


def _writable(response: FetchResponse) -> FetchResponse:
    """Leave out, and name in `errors`, what JSON would turn into null, and a reader into "no data"."""
    infinite = [name for name, value in response.features.items() if isinstance(value, float) and not isfinite(value)]
    if not infinite:
        return response
    lost = f"{response.name!r}: the value overflowed, and JSON has no word for infinity."
    states: dict[str, ValueState] = {**response.states, **dict.fromkeys(infinite, "unavailable")}
    return msgspec.structs.replace(
        response,
        features={name: value for name, value in response.features.items() if name not in infinite},
        states=states,
        errors={**response.errors, **dict.fromkeys(infinite, lost)},
    )


def _served(fetcher: Fetcher, name: str, info: ServingInfo | None) -> ServedGroupBy:
    plan = fetcher.plans[name]
    return ServedGroupBy(
        name=name,
        definition_hash=plan.definition_hash,
        keys={field.name: field.type for field in plan.group_by.keys},
        features=plan.feature_names,
        batch_end_ms=None if info is None else info.batch_end_ms,
        batch_landing_ms=None if info is None else info.batch_landing_ms,
    )


def _json(content: object, status: int = 200, headers: dict[str, str] | None = None) -> "Response":
    from starlette.responses import Response

    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def _problem(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> "Response":
    return _json({"error": Problem(code, message)}, status, headers)


async def _on_error(_request: "Request", error: Exception) -> "Response":
    status, code = next((status, code) for kind, status, code in _STATUS if isinstance(error, kind))
    return _problem(status, code, str(error), {"Retry-After": "1"} if status == 503 else None)  # noqa: PLR2004


async def _on_wrong_path(request: "Request", error: Exception) -> "Response":
    status = int(getattr(error, "status_code", 500))
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")
    message = f"{request.method} {request.url.path}: {getattr(error, 'detail', error)}."
    return _problem(status, code, message, getattr(error, "headers", None))


async def _on_bug(_request: "Request", error: Exception) -> "Response":
    return _problem(500, "internal", f"{type(error).__name__} in the server; its log has the traceback.")
