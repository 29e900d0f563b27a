"""The fetcher's other end: a client that is called as the `Fetcher` is, and asks one over HTTP.

Place on the data path: in the model's process. Invariant: `fetch` returns what the `Fetcher` behind the
URL would, and raises what it would, so that code can move from in-process to HTTP without a change.
Trade-off: standard library only, one connection, one thread.
"""

import http.client
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote, urlsplit

import msgspec

from millpond.errors import CorruptionError, DataError, MillpondError, OptionError, UnavailableError
from millpond.serving.http import FetchBody, FetchItem, FetchResults, Problem
from millpond.serving.messages import FetchRequest, FetchResponse

_ERRORS: dict[str, type[MillpondError]] = {
    "bad_request": DataError,
    "too_large": DataError,
    "unknown_group_by": OptionError,
    "corrupt": CorruptionError,
}
"""Which error a code stands for; all others are `UnavailableError`."""


class _Failure(msgspec.Struct):
    error: Problem


class FetchClient:
    """Fetches over HTTP from a server that runs `http_app`; for one thread.

    >>> from millpond.kv import MemoryStore
    >>> from millpond.serving import Fetcher, http_app, running_server
    >>> with running_server(http_app(Fetcher(MemoryStore(), []))) as url, FetchClient(url) as client:
    ...     client.fetch("route", {}, 0)
    Traceback (most recent call last):
    millpond.errors.OptionError: no GroupBy 'route' is served here; served are [].
    """

    def __init__(self, url: str, *, timeout_ms: int = 10_000) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise OptionError(f"url is {url!r}; expected something like http://127.0.0.1:8765")
        self._url = url
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_ms / 1000)

    def fetch(self, target: str, keys: Mapping[str, Any], at: int) -> FetchResponse:
        """Answer one request; as `fetch_many`."""
        return self.fetch_many([FetchRequest(target, keys, at)])[0]

    def fetch_many(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Answer the requests, in their order, with one call for each GroupBy among them.

        Raises what `Fetcher.fetch` raises, and `UnavailableError` if the server does not answer.
        """
        positions: dict[str, list[int]] = {}
        for position, request in enumerate(requests):
            positions.setdefault(request.name, []).append(position)
        answers: dict[int, FetchResponse] = {}
        for group_by, wanted in positions.items():
            body = FetchBody([FetchItem(dict(requests[place].keys), requests[place].at) for place in wanted])
            answers.update(zip(wanted, self._post(group_by, body), strict=True))
        return [answers[position] for position in range(len(requests))]

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, group_by: str, body: FetchBody) -> list[FetchResponse]:
        try:
            self._connection.request(
                "POST",
                f"/v1/fetch/{quote(group_by, safe='')}",
                msgspec.json.encode(body),
                {"Content-Type": "application/json"},
            )
            response = self._connection.getresponse()
            status, content = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise UnavailableError(f"no answer from {self._url}: {error!r}. Is the server running there?") from error
        try:
            if status == http.client.OK:
                return msgspec.json.decode(content, type=FetchResults).results
            problem = msgspec.json.decode(content, type=_Failure).error
        except msgspec.MsgspecError as error:
            raise UnavailableError(
                f"{self._url} answered {status} with something that no fetcher sends: {content[:80]!r}."
            ) from error
        raise _ERRORS.get(problem.code, UnavailableError)(problem.message)
