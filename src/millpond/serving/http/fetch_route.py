"""The route of one GroupBy or Join: a body in, the features out.

Place on the data path: every prediction takes this route. What is known before a call is prepared once: the
decoder of the body, the answer's headers, the description of the target.

Idea: a fetch runs on the event loop's own thread as far as the store allows. A call of many requests is
answered in slices, so that other calls get their turn in between. Tables go to a thread, because Arrow works
without the interpreter's lock.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import parse_qs

from millpond.errors import DataError
from millpond.serving.http.asgi import ARROW_MEDIA_TYPE, JSON_TYPE, Call, Header, Reply
from millpond.serving.http.bodies.json_bodies import JsonFetch, write_results
from millpond.serving.http.bodies.request_bodies import RequestBodies
from millpond.serving.http.in_flight import InFlight
from millpond.serving.http.limits import Limits
from millpond.serving.http.problems import RefusedError
from millpond.serving.http.served import Served
from millpond.serving.messages import FetchRequest, FetchResponse, Target

SLICE = 100
"""How many requests of one call are answered before other calls get their turn."""

DEFINITION_HEADER = b"millpond-definition"
"""The header with the hash of the definition that answered, so that a client notices a change."""

Format = Literal["json", "arrow"]

_JSON, _ARROW = b"application/json", ARROW_MEDIA_TYPE.encode()
_ACCEPTED = {_JSON: "json", b"application/*": "json", b"*/*": "json", _ARROW: "arrow"}


class FetchRoute:
    """Answers the fetches of one target."""

    def __init__(
        self, fetcher: Served, target: Target, limits: Limits, bodies: RequestBodies, in_flight: InFlight
    ) -> None:
        self._fetcher = fetcher
        self._target = target
        self._limits = limits
        self._bodies = bodies
        self._in_flight = in_flight
        self._answers = fetcher.fetch_many_async
        self._json = JsonFetch(target, limits)
        definition: Header = (DEFINITION_HEADER, target.definition_hash.encode())
        self.json_headers = [JSON_TYPE, definition]
        self._arrow_headers = [(b"content-type", _ARROW), definition]

    async def __call__(self, call: Call) -> Reply:
        """Answer one fetch.

        Raises:
            RefusedError: the call is wrong, or too many fetches are running.
            MillpondError: as the fetcher raises.
        """
        headers = call.headers
        content_type, accept = headers.get(b"content-type", _JSON), headers.get(b"accept", _JSON)
        if content_type == accept == _JSON or (content_type == _JSON and accept == b"*/*"):
            sent: Format = "json"
            wanted: Format = "json"
        else:
            sent, wanted = _format_sent(content_type), _format_wanted(accept)
        bodies = self._bodies
        bodies.check(call)
        call.is_reading = True
        message = await call.receive()
        body = bodies.whole(message)
        if body is None:
            body = await bodies.read_on(call, message)
        call.is_reading = False
        self._in_flight.enter()
        try:
            if sent == wanted == "json":
                requests = self._json.read(body)
                if len(requests) <= SLICE:
                    return Reply(200, self.json_headers, write_results(await self._answers(requests)))
                return Reply(200, self.json_headers, write_results(await self._in_slices(requests)))
            return await self._other(call, body, sent, wanted)
        finally:
            self._in_flight.leave()

    def takes(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a call with these headers may be answered by `now`: JSON in and out, not compressed."""
        is_json = headers.get(b"content-type", _JSON) == _JSON and headers.get(b"accept", _JSON) in (_JSON, b"*/*")
        return is_json and b"content-encoding" not in headers

    def now(self, body: bytes) -> bytes | None:
        """Return the body of an answer in JSON at once; None if that must wait, or the call must be refused.

        Raises:
            MillpondError: as the fetcher raises.
        """
        if self._in_flight.is_full or len(body) > self._limits.max_body_bytes:
            return None
        requests = self._json.read(body)
        if len(requests) > SLICE:
            return None
        answers = self._fetcher.fetch_now(requests)
        return None if answers is None else write_results(answers)

    async def _in_slices(self, requests: list[FetchRequest]) -> list[FetchResponse]:
        responses: list[FetchResponse] = []
        for start in range(0, len(requests), SLICE):
            responses += await self._answers(requests[start : start + SLICE])
            await asyncio.sleep(0)
        return responses

    async def _other(self, call: Call, body: bytes, sent: Format, wanted: Format) -> Reply:
        """Answer a call of which the body, the answer or both are Arrow."""
        from millpond.serving.http.bodies import arrow_bodies

        target = self._target
        if sent == "json":
            requests = self._json.read(body)
            features = requests[0].features if requests else None
            if any(request.explain for request in requests):
                raise DataError("an answer in Arrow has no room for what explain tells. Ask for JSON.")
            table = arrow_bodies.table_of(requests, target)
        else:
            features = self._features_named(call)
            table = arrow_bodies.read_table(body, target, self._limits)
        if wanted == "json":
            requests = arrow_bodies.requests_of(table, target, features)
            return Reply(200, self.json_headers, write_results(await self._in_slices(requests)))
        answer = await asyncio.to_thread(self._fetcher.fetch_table, target.name, table, features=features)
        return Reply(200, self._arrow_headers, arrow_bodies.write_table(answer))

    def _features_named(self, call: Call) -> tuple[str, ...] | None:
        """Return the features that the query string names; an Arrow body has no place for them."""
        query: bytes = call.scope.get("query_string", b"")
        if not query:
            return None
        try:
            named = parse_qs(query.decode("ascii"), strict_parsing=True, max_num_fields=1)
        except ValueError as error:
            raise DataError(f"the query string cannot be read: {error}. Expected ?features=name,name") from error
        if set(named) != {"features"}:
            raise DataError(f"the query string has {sorted(named)}; expected ?features=name,name")
        features = tuple(named["features"][0].split(","))
        if len(features) > self._limits.max_features:
            raise DataError(f"the call names {len(features)} features; it may name {self._limits.max_features}.")
        return features


_NOT_WANTED = re.compile(rb"q=0(\.0{0,3})?")
"""The weight of a media type that the caller does not accept (RFC 9110, 12.4.2)."""


def _format_sent(content_type: bytes) -> Format:
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == _JSON:
        return "json"
    if kind == _ARROW:
        return "arrow"
    raise RefusedError(
        "unsupported_media_type",
        f"Content-Type is {content_type[:100].decode('latin-1')!r}; expected application/json or {ARROW_MEDIA_TYPE}.",
        closing=True,
    )


def _format_wanted(accept: bytes) -> Format:
    """Return the first format that the caller accepts and the service has."""
    for choice in accept.lower().split(b","):
        kind, *parameters = [part.strip() for part in choice.split(b";")]
        found = _ACCEPTED.get(kind)
        if found is not None and not any(map(_NOT_WANTED.fullmatch, parameters)):
            return "arrow" if found == "arrow" else "json"
    raise RefusedError(
        "not_acceptable",
        f"Accept is {accept[:100].decode('latin-1')!r}; the service answers in application/json and "
        f"{ARROW_MEDIA_TYPE}.",
        closing=True,
    )
