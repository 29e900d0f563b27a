"""The requests and answers of a fetcher, and the description of what it serves.

Place on the data path: the last step before the model. The fetcher, the HTTP service and its clients
share these types, so a request and its answer mean the same in process and over a network.

Invariant: a value is in one of three states. A *present* value is in `features`. A *null* one is in
`features` as None: the key is known to have no data. An *unavailable* one is not in `features` at all,
and `errors` says why. So no failure can be mistaken for "no data".
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import msgspec

from millpond.errors import DataError, OptionError

ValueState = Literal["null", "unavailable"]
"""The state of a value that is not present."""


class FetchRequest(msgspec.Struct, frozen=True):
    """Asks for the features of one key of a GroupBy or Join.

    Attributes:
        name: the GroupBy or Join.
        keys: the parts of the key by name, as Python values of the declared types.
        at: the time of the query in milliseconds UTC; None is now, by the fetcher's clock.
        context: fields that are known only at query time, by name; None for none.
        features: the features wanted, in this order; None for all.
        explain: also say where each value comes from.

    >>> FetchRequest("route", {"origin": "EWR"}, at=1_388_361_600_000).features is None
    True
    """

    name: str
    keys: Mapping[str, Any]
    at: int | None = None
    context: Mapping[str, Any] | None = None
    features: tuple[str, ...] | None = None
    explain: bool = False


class FetchResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The features of one request, by name.

    Attributes:
        name: the GroupBy or Join that was asked.
        keys: the keys of the request.
        at: the time of the answer, in milliseconds UTC.
        features: the values that are present, and None for those known to be null.
        states: the state of each wanted feature that is not present.
        errors: why a feature, or a part of a Join, is unavailable, by its name.
        batch_end_ms: the end of the batch that answered; for a Join by the name of its part; None if none did.
        explain: where each value comes from, if the request asked for that.

    >>> response = FetchResponse("route", {"origin": "EWR"}, 0, {"count_1h": 3, "count_1d": None}, {"count_1d": "null"})
    >>> response.state("count_1h"), response.state("count_1d")
    ('present', 'null')
    """

    name: str
    keys: Mapping[str, Any]
    at: int
    features: dict[str, Any]
    states: dict[str, ValueState] = {}
    errors: dict[str, str] = {}
    batch_end_ms: int | dict[str, int | None] | None = None
    explain: dict[str, Any] | None = None

    def state(self, feature: str) -> Literal["present", "null", "unavailable"]:
        """Return the state of one of the wanted features."""
        return self.states.get(feature, "present" if feature in self.features else "unavailable")


class Target(msgspec.Struct, frozen=True):
    """A GroupBy or Join as a caller sees it: what a request has, and what an answer has.

    Attributes:
        name: its name in requests.
        kind: whether it is a GroupBy or a Join.
        definition_hash: marks the definition; another hash may mean other features or types.
        keys: name and type of each part of the key, in declared order.
        context: name and type of each field that is known only at query time.
        features: name and type of each feature, in the order of an answer.
        parts: the names of the GroupBys that are read; a GroupBy has one, itself.

    >>> Target("route", "group_by", "c0ffee", {"origin": "string"}, {}, {"count_1h": "long"}, ("route",)).kind
    'group_by'
    """

    name: str
    kind: Literal["group_by", "join"]
    definition_hash: str
    keys: dict[str, str]
    context: dict[str, str]
    features: dict[str, str]
    parts: tuple[str, ...]


def feature_names(features: Sequence[str]) -> tuple[str, ...]:
    """Return the names of wanted features as a tuple.

    Raises:
        OptionError: they are one text, whose letters would be taken for names, or no sequence.
    """
    if isinstance(features, str):
        raise OptionError(f"features is {features!r}; expected a list of names, such as [{features!r}]")
    try:
        return tuple(features)
    except TypeError as cause:
        raise OptionError(f"features is {features!r}; expected a list of names, or None for all") from cause


def refused_context(name: str, context: object) -> DataError:
    """Return the error for a context that is no mapping."""
    return DataError(
        f"{name!r}: context is {context!r}; expected a mapping from names to values, such as {{'amount': 9.5}}"
    )


def refuse_requests(requests: object, cause: Exception) -> NoReturn:
    """Raise a `DataError` that says what is no request; if all are requests, raise the cause.

    It is called once a call has failed, so correct calls need no check.
    """
    expected = 'expected a list of FetchRequest(name, keys, at), such as [FetchRequest("route", {"origin": "EWR"})]'
    if not isinstance(requests, list | tuple):
        raise DataError(f"requests is {requests!r}; {expected}") from cause
    for place, request in enumerate(requests):
        if not isinstance(request, FetchRequest):
            raise DataError(f"requests[{place}] is {request!r}; {expected}") from cause
        if not isinstance(request.name, str):
            raise DataError(
                f"requests[{place}].name is {request.name!r}; expected the name of a GroupBy or Join, as a text"
            ) from cause
    raise cause
