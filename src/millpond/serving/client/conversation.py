"""What a client sends and receives, without the network: requests to bodies, answers to responses or errors.

Place on the data path: above a client's connections. Each client holds one `Conversation`, which remembers the
types of the targets that it asked for.

Invariant: a client returns what the fetcher behind the service returned, of the same Python types, and
raises what it raised. JSON knows fewer types than Millpond, so an answer is read with the types of its
target. The service marks each answer with the hash of the definition. A client that knows another hash asks for
the types again before it reads the answer.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from millpond.errors import DataError, MillpondError, OptionError, UnavailableError
from millpond.features import GroupBy
from millpond.features.definitions import Join
from millpond.features.query_times import refused_time
from millpond.features.stored.rows import MAX_QUERY_MS
from millpond.serving.client.address import Address
from millpond.serving.client.exchange import Answer, request_bytes, request_head
from millpond.serving.http.json_types import feature_values
from millpond.serving.http.problems import KINDS, RETRIED, Failure
from millpond.serving.http.served_targets import ServedTarget
from millpond.serving.messages import (
    FetchRequest,
    FetchResponse,
    ValueState,
    feature_names,
    refuse_requests,
    refused_context,
)

if TYPE_CHECKING:
    import pyarrow as pa

_F = TypeVar("_F")

_ARROW = "application/vnd.apache.arrow.stream"
_JSON = "application/json"


class _Result(msgspec.Struct, Generic[_F]):
    at: int
    features: _F
    states: dict[str, ValueState] = {}
    errors: dict[str, str] = {}
    batch_end_ms: int | dict[str, int | None] | None = None
    explain: dict[str, Any] | None = None


class _Results(msgspec.Struct, Generic[_F]):
    results: list[_Result[_F]]


class _Target(NamedTuple):
    definition_hash: str
    decode: Callable[[bytes], Any]


class Batch(NamedTuple):
    """Requests that go into one call: those of one target with the same features; with their positions."""

    name: str
    features: tuple[str, ...] | None
    explain: bool
    positions: list[int]
    requests: list[FetchRequest]


def name_of(target: str | GroupBy | Join) -> str:
    """Return the name of a target.

    Raises:
        OptionError: it is none.
    """
    if isinstance(target, str):
        return target
    if isinstance(target, GroupBy | Join):
        return target.name
    raise OptionError(
        f"target is {target!r}; expected the name of a GroupBy or Join, or its definition. The target comes first, "
        "then the keys"
    )


def batches_of(requests: Sequence[FetchRequest]) -> list[Batch]:
    """Group the requests into as few calls as possible.

    Raises:
        DataError: they are no requests.
    """
    batches: dict[tuple[str, tuple[str, ...] | None, bool], Batch] = {}
    for position, request in enumerate(requests):
        if not isinstance(request, FetchRequest) or not isinstance(request.name, str):
            refuse_requests(requests, TypeError(f"requests[{position}] is no request"))
        features = None if request.features is None else feature_names(request.features)
        key = (request.name, features, request.explain)
        batch = batches.get(key)
        if batch is None:
            batch = batches[key] = Batch(*key, [], [])
        batch.positions.append(position)
        batch.requests.append(request)
    return list(batches.values())


class Conversation:
    """Writes calls and reads answers; safe to use from several threads."""

    def __init__(self, address: Address, api_key: str | None) -> None:
        self._address = address
        default_port = 443 if address.is_tls else 80
        name = f"[{address.host}]" if ":" in address.host else address.host
        self._host = name if address.port == default_port else f"{name}:{address.port}"
        self._credentials = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._heads: dict[str, bytes] = {}
        self._targets: dict[str, _Target] = {}

    def ask(self, batch: Batch) -> bytes:
        """Return the call that fetches a batch.

        Raises:
            DataError: JSON cannot express a key, a field of the context or a time.
        """
        head = self._heads.get(batch.name)
        if head is None:
            head = self._heads[batch.name] = self._head("POST", _path(batch.name), _JSON, _JSON)
        body: dict[str, Any] = {"requests": [_item(request) for request in batch.requests]}
        if batch.features is not None:
            body["features"] = batch.features
        if batch.explain:
            body["explain"] = True
        try:
            return request_bytes(head, msgspec.json.encode(body))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise DataError(
                f"{batch.name!r}: a key, a field of the context or a time cannot be sent: {error}. "
                "Convert it to a Python value of its declared type."
            ) from error

    def ask_for_table(self, target: str, table: "pa.Table", features: Sequence[str] | None) -> bytes:
        """Return the call that fetches a table of keys."""
        import pyarrow as pa

        query = "" if features is None else "?features=" + quote(",".join(feature_names(features)))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return request_bytes(self._head("POST", _path(target) + query, _ARROW, _ARROW), sink.getvalue().to_pybytes())

    def ask_for_types(self, target: str) -> bytes:
        """Return the call that asks for the description of a target."""
        return request_bytes(self._head("GET", _path(target), _JSON, _JSON), b"")

    def may_retry(self, answer: Answer) -> bool:
        """Return whether the service says that the call may be sent again."""
        return answer.status in RETRIED

    def learn_types(self, answer: Answer) -> None:
        """Remember the types in the description of a target.

        Raises:
            MillpondError: as the service says.
        """
        described = self._read(answer, msgspec.json.Decoder(ServedTarget).decode)
        features = feature_values(f"{described.name}_features", described.features)
        decoder = msgspec.json.Decoder(_Results[features])  # type: ignore[valid-type]
        self._targets[described.name] = _Target(described.definition_hash, decoder.decode)

    def knows_types(self, batch: Batch, answer: Answer) -> bool:
        """Return whether the answer can be read with the types that are known."""
        if answer.status != 200:  # noqa: PLR2004
            return True
        known = self._targets.get(batch.name)
        return known is not None and known.definition_hash == answer.headers.get("millpond-definition")

    def responses(self, batch: Batch, answer: Answer) -> list[FetchResponse]:
        """Read the answer to a batch.

        Raises:
            MillpondError: as the fetcher behind the service raised.
        """
        known = self._targets.get(batch.name)
        results = self._read(answer, known.decode if known else msgspec.json.Decoder(_Results[dict[str, Any]]).decode)
        if len(results.results) != len(batch.requests):
            raise self._nonsense(answer)
        return [
            FetchResponse(
                request.name,
                request.keys,
                result.at,
                result.features,
                result.states,
                result.errors,
                result.batch_end_ms,
                result.explain,
            )
            for request, result in zip(batch.requests, results.results, strict=True)
        ]

    def table(self, answer: Answer) -> "pa.Table":
        """Read the answer to a table. Raises as `responses`."""
        import pyarrow as pa

        if answer.status != 200:  # noqa: PLR2004
            self._read(answer, msgspec.json.decode)
        try:
            return pa.ipc.open_stream(answer.body).read_all()
        except pa.ArrowException as error:
            raise self._nonsense(answer) from error

    def unreachable(self, error: BaseException) -> UnavailableError:
        """Return the error to raise if no answer came."""
        return UnavailableError(f"no answer from {self._address.url}: {error!r}. Is the server running there?")

    def _head(self, method: str, path: str, sent: str, accepted: str) -> bytes:
        headers = {"content-type": sent, "accept": accepted, **self._credentials}
        if method == "GET":
            del headers["content-type"]
        return request_head(method, path, self._host, headers)

    def _read(self, answer: Answer, decode: Callable[[bytes], Any]) -> Any:
        try:
            if answer.status == 200:  # noqa: PLR2004
                return decode(answer.body)
            problem = msgspec.json.decode(answer.body, type=Failure).error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._nonsense(answer) from error
        kind = KINDS.get(problem.code)
        raise (MillpondError if kind is None else kind.error)(problem.message)

    def _nonsense(self, answer: Answer) -> UnavailableError:
        return UnavailableError(
            f"{self._address.url} answered {answer.status} with something that no fetcher sends: {answer.body[:80]!r}."
        )


def _path(name: str) -> str:
    return f"/v1/fetch/{quote(name, safe='')}"


def _item(request: FetchRequest) -> dict[str, Any]:
    if not isinstance(request.keys, Mapping):
        raise DataError(
            f"{request.name!r}: keys are {request.keys!r}; expected a mapping from names to values, such as "
            '{"user_id": 3}'
        )
    item: dict[str, Any] = {"keys": request.keys}
    _refuse_infinite(request.keys)
    if request.at is not None:
        if type(request.at) is not int or request.at >= MAX_QUERY_MS:
            raise refused_time(request.name, request.at)
        item["at"] = request.at
    if request.context is not None and not isinstance(request.context, Mapping):
        raise refused_context(request.name, request.context)
    if request.context:
        _refuse_infinite(request.context)
        item["context"] = request.context
    return item


def _refuse_infinite(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if type(value) is float and not isfinite(value):
            raise DataError(f"{name!r} is {value!r}; JSON has no word for it. Send None where there is no value.")
