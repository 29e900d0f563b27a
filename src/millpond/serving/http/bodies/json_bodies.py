"""The JSON of a fetch: its body read into requests, its responses written.

Place on the data path: between the bytes of a call and the fetcher. A target has one decoder, prepared
with the types of its keys and context. So a key of a wrong type is refused while it is read, with its
place in the body, and a date arrives as a date.

Invariant: no input is silently ignored, and no value silently changed. A name that appears twice, or that the
target does not have, is refused. A value that JSON cannot express is left out of an answer and named, never turned
into null.

Idea: a decoder that builds typed objects drops names it does not know and keeps the last of two equal
names. Each member of an object has one colon outside of strings. So if a body has as many colons as the
decoded requests have members, it had no other members. Only if it has more (colons within strings, as
in a timestamp, or too many members) is it read again, by a parser that reports every pair.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, NoReturn, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from millpond.errors import DataError
from millpond.serving.http.json_types import given_values
from millpond.serving.http.limits import Limits
from millpond.serving.messages import FetchRequest, FetchResponse, Target, ValueState

K = TypeVar("K")
C = TypeVar("C")
R = TypeVar("R")
F = TypeVar("F")

MAX_TIME_MS = 1 << 53
"""The farthest time before and after 1970 that may be asked for: every store and JSON reader holds it exactly."""

_Time = Annotated[int, msgspec.Meta(ge=-MAX_TIME_MS, le=MAX_TIME_MS, description="Milliseconds since 1970, UTC.")]

_EXPECTED = '{"requests": [{"keys": {"name": value}, "at": milliseconds}]}'


class FetchItem(msgspec.Struct, Generic[K, C], forbid_unknown_fields=True):
    """One request in the body of a fetch. Without a time it means now."""

    keys: K
    at: _Time | UnsetType | None = UNSET
    context: C | UnsetType | None = UNSET


class FetchBody(msgspec.Struct, Generic[R, F], forbid_unknown_fields=True):
    """The body of a fetch. Without features it asks for all of them."""

    requests: R
    features: F | UnsetType | None = UNSET
    explain: bool | UnsetType = UNSET


class FetchResults(msgspec.Struct):
    """The answer to a fetch, in the order of its requests."""

    results: list[FetchResponse]


class JsonFetch:
    """Reads the bodies of fetches of one target; made once, immutable.

    >>> route = Target("route", "group_by", "c0ffee", {"origin": "string"}, {}, {"count": "long"}, ("route",))
    >>> JsonFetch(route, Limits()).read(b'{"requests": [{"keys": {"origin": "EWR"}, "at": 0}]}')[0].keys
    {'origin': 'EWR'}
    """

    def __init__(self, target: Target, limits: Limits) -> None:
        self._name = target.name
        self._allowed = {"keys": set(target.keys), "context": set(target.context)}
        self.body_type = body_type(target, limits)
        self._decode = msgspec.json.Decoder(self.body_type).decode

    def read(self, body: bytes) -> list[FetchRequest]:
        """Return the requests of a body.

        Raises:
            DataError: the body is not JSON, or not a fetch of this target; the error names the place.
        """
        try:
            call = self._decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._refuse(str(error), error)
        features = None if call.features is UNSET or call.features is None else tuple(call.features)
        explain = call.explain is True
        requests = []
        members = 1 + (call.features is not UNSET) + (call.explain is not UNSET)
        for item in call.requests:
            keys, at, context = item.keys, item.at, item.context
            members += 1 + len(keys)
            if at is UNSET:
                at = None
            else:
                members += 1
            if context is UNSET or not context:
                members += context is not UNSET
                context = None
            else:
                members += 1 + len(context)
            requests.append(FetchRequest(self._name, keys, at, context, features, explain))
        if body.count(b":") != members:
            self._read_strictly(body)
        return requests

    def _read_strictly(self, body: bytes) -> None:
        """Raise if names appear twice, or keys or context have names that the target does not have."""
        try:
            call = json.loads(body, object_pairs_hook=_without_doubles)
        except (ValueError, RecursionError) as error:
            self._refuse(str(error), error)
        for place, item in enumerate(call["requests"]):
            for part, allowed in self._allowed.items():
                unknown = sorted(set(item.get(part) or ()) - allowed)
                if unknown:
                    known = f"it has {sorted(allowed)}" if allowed else "it has none"
                    found = f"{unknown[0]!r} is not in the {part} of {self._name!r}, {known}"
                    self._refuse(f"{found} - at `$.requests[{place}].{part}`")

    def _refuse(self, found: str, cause: BaseException | None = None) -> NoReturn:
        raise DataError(
            f"the body is not what a fetch of {self._name!r} takes: {found}. Expected {_EXPECTED}."
        ) from cause


def body_type(target: Target, limits: Limits) -> Any:
    """Return the type of the body of a fetch, for its decoder and the OpenAPI document."""
    keys = given_values(f"{target.name}_keys", target.keys, all_of_them=True)
    context = given_values(f"{target.name}_context", target.context, all_of_them=False)
    items = Annotated[list[FetchItem[keys, context]], msgspec.Meta(max_length=limits.max_requests)]  # type: ignore[valid-type]
    features = Annotated[list[str], msgspec.Meta(max_length=limits.max_features)]
    return FetchBody[items, features]


def write_results(responses: Sequence[FetchResponse]) -> bytes:
    """Encode the responses; a value that is infinite or not a number is left out and named."""
    for response in responses:
        for value in response.features.values():
            kind = type(value)
            if (kind is float and value - value != 0.0) or kind is list or kind is dict:
                return _ENCODE(FetchResults([_writable(response) for response in responses]))
    return _ENCODE(FetchResults(list(responses)))


_ENCODE = msgspec.json.Encoder().encode


def _writable(response: FetchResponse) -> FetchResponse:
    lost = [name for name, value in response.features.items() if not _is_finite(value)]
    if not lost:
        return response
    reason = "the value is infinite or not a number, and JSON has no word for that. Ask for Arrow to get it."
    states: dict[str, ValueState] = {**response.states, **dict.fromkeys(lost, "unavailable")}
    return msgspec.structs.replace(
        response,
        features={name: value for name, value in response.features.items() if name not in lost},
        states=states,
        errors={**response.errors, **dict.fromkeys(lost, reason)},
    )


def _is_finite(value: object) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list | tuple) else True


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"{twice!r} appears twice in one object")
    return named
