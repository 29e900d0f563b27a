"""Values in Redis as a lookup source.

A batch of keys is one pipeline. The name of a value is made from the key by a pattern such as
`plane:{tailnum}`. The value is a hash, whose fields are the columns of a single row, or a string with
JSON: an object is one row, a list of objects is several.

The invariant: a key has no rows only if Redis has no value under its name. A hash that exists without
any of the columns is a row of nulls. A value of another kind is an error.

A scan lists the names (Redis' SCAN), reads the keys back from them (`value_names`), and looks these up.
So it finds what lookups find. A value that exists throughout the scan is found once. A value that is
added or removed meanwhile may be found or not.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import islice
from typing import Any, Literal, Self, TypeAlias

import pyarrow as pa

from millpond.errors import DataError, MissingDependencyError, OptionError, UnavailableError
from millpond.lookup.functions.function import Key, LookupFunction, Row, Rows
from millpond.lookup.functions.keys import check_key_types
from millpond.lookup.push_down.conditions import Conditions
from millpond.lookup.push_down.narrowed import picked
from millpond.lookup.sources.declared import batch_of_rows, declared_schema
from millpond.lookup.sources.json_text import decoded_json, shown
from millpond.lookup.sources.value_names import ValueNames
from millpond.lookup.sources.values import readers
from millpond.masking import masked, tellable

RedisValue: TypeAlias = Literal["hash", "json"]
_KEYS_A_PIPELINE = 1_000


class RedisLookup(LookupFunction):
    """Rows of a Redis database by key; also a scan, for a full cache.

    - Delivery: one pipeline per batch of keys.
    - Freshness: the present value in Redis.
    - Recovery: a lost connection is opened again at the next try.

    Args:
        url: such as `redis://localhost:6379/0`; `rediss://` for TLS, `unix://` for a socket.
        name: the pattern of a value's name, with every key column once: `plane:{tailnum}`. With several key
            columns, choose separators that never occur in the values: a name that two keys share is an error.
        key_schema: the names and types of the key columns.
        row_schema: the names and types of the columns of a row: fields of the hash, or of the JSON objects.
        value: `"hash"`, or `"json"` for a string with JSON.
        timeout_ms: the longest wait for a connection, and for an answer.

    Raises:
        OptionError: the pattern does not have exactly the key columns, a column's type cannot be read from text, or
            Redis rejects the user or password.
        UnavailableError: Redis does not answer.
        DataError: a value is of another kind, a column of another type, or two keys share a name.
    """

    def __init__(
        self,
        url: str,
        name: str,
        key_schema: pa.Schema,
        row_schema: pa.Schema,
        *,
        value: RedisValue = "hash",
        timeout_ms: int = 5_000,
    ) -> None:
        self._name = name
        self._where = f"Redis values {name!r}"
        check_key_types(self._where, key_schema)
        self._names = ValueNames(self._where, name, key_schema)
        if value not in ("hash", "json"):
            raise OptionError(f"{self._where}, value: expected 'hash' or 'json', got {value!r}")
        self._url = url
        self._value = value
        self._timeout_ms = timeout_ms
        self.key_schema = key_schema
        self.row_schema = row_schema
        readers(self._where, row_schema)  # raises for types that cannot be read
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the connections, for another process."""
        return {**self.__dict__, "_client": None}

    def open(self) -> None:
        """Connect, and check that Redis answers."""
        if self._client is not None:
            return
        redis = _redis()
        timeout_s = self._timeout_ms / 1_000
        client = redis.Redis.from_url(
            self._url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),  # only `lookup.max-retries` decides on retries
        )
        try:
            client.ping()
        except redis.exceptions.RedisError as error:
            client.close()
            raise self._failed(error) from tellable(error)
        self._client = client

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def lookup(self, keys: Key) -> Rows:
        """Return the rows of one key."""
        return self.lookup_many([keys])[keys]

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key, by one pipeline."""
        self.open()
        names = [self._names.of(key) for key in keys]
        try:
            found = self._hashes(names) if self._value == "hash" else self._objects(names)
        except _redis().exceptions.RedisError as error:
            raise self._failed(error) from tellable(error)
        return dict(zip(keys, found, strict=True))

    def scan(self) -> pa.Table:
        """Return the rows of every value whose name fits the pattern."""
        return self.scan_batches().read_all()

    def scan_batches(self) -> pa.RecordBatchReader:
        """Return what `scan` does, one pipeline per batch."""
        self.open()
        schema = declared_schema(self.key_schema, self.row_schema)
        keys = self._keys()
        pieces = iter(lambda: list(islice(keys, _KEYS_A_PIPELINE)), [])
        batches = (
            batch_of_rows(self._where, self.lookup_many(piece), self.key_schema, self.row_schema) for piece in pieces
        )
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _keys(self) -> Iterator[Key]:
        """Yield the key of every existing name, once."""
        read = self._names.reader()
        seen: set[bytes] = set()
        try:
            for name in self._client.scan_iter(match=self._names.glob, count=_KEYS_A_PIPELINE):
                key = None if name in seen else read(name)
                seen.add(name)
                if key is not None:
                    yield key
        except _redis().exceptions.RedisError as error:
            raise self._failed(error) from tellable(error)

    def pushed_down(self, columns: Sequence[str], where: Conditions) -> tuple[Self, Conditions]:
        """Return a lookup of the same values that fetches fewer fields. All conditions remain to be checked."""
        needed = dict.fromkeys([*columns, *(condition.column for condition in where)])
        names = [name for name in needed if name in self.row_schema.names] or self.row_schema.names[:1]
        narrow = copy(self)
        narrow.row_schema = picked(self.row_schema, names)
        return narrow, where

    def _hashes(self, names: Sequence[str]) -> list[Rows]:
        columns = self.row_schema.names
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.hmget(_stored(name), columns)
        answers = pipeline.execute()
        self._settle([place for place, values in enumerate(answers) if not any(map(_there, values))], names, answers)
        read = readers(self._where, self.row_schema)
        return [
            [] if values is None else [tuple(one(value) for one, value in zip(read, values, strict=True))]
            for values in answers
        ]

    def _settle(self, unclear: Sequence[int], names: Sequence[str], answers: list[Any]) -> None:
        """Decide by EXISTS whether a hash with none of the fields is a row of nulls, or does not exist."""
        if not unclear:
            return
        pipeline = self._client.pipeline(transaction=True)
        for place in unclear:
            pipeline.exists(_stored(names[place]))
            pipeline.hmget(_stored(names[place]), self.row_schema.names)
        again = pipeline.execute()
        for place, exists, values in zip(unclear, again[::2], again[1::2], strict=True):
            answers[place] = values if exists else None

    def _objects(self, names: Sequence[str]) -> list[Rows]:
        read = list(zip(self.row_schema.names, readers(self._where, self.row_schema), strict=True))
        # Not MGET, which reports a value of another kind as missing.
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.get(_stored(name))
        return [
            [] if text is None else [self._row(read, thing, name) for thing in self._parsed(text, name)]
            for name, text in zip(names, pipeline.execute(), strict=True)
        ]

    def _parsed(self, text: bytes, name: str) -> list[Any]:
        parsed = decoded_json(f"{self._where}, value {name!r}", text)
        return parsed if isinstance(parsed, list) else [parsed]

    def _row(self, read: Sequence[tuple[str, Any]], thing: Any, name: str) -> Row:
        missing = [column for column, _ in read if column not in thing] if isinstance(thing, dict) else ["object"]
        if missing:
            raise DataError(
                f"{self._where}, value {name!r}: expected a JSON object with {', '.join(self.row_schema.names)}, "
                f"got {shown(thing)}"
            )
        return tuple(one(thing[column]) for column, one in read)

    def _failed(self, error: Exception) -> Exception:
        exceptions = _redis().exceptions
        if isinstance(error, (exceptions.AuthenticationError, exceptions.AuthorizationError)):
            return OptionError(
                f"{self._where}: Redis let us not in: {masked(error)}; check user and password in the URL"
            )
        if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError)):
            return UnavailableError(f"{self._where}: Redis did not answer: {masked(error)}")
        return DataError(
            f"{self._where}: Redis refused the lookup: {masked(error)}; is each of these values a "
            f"{'hash' if self._value == 'hash' else 'string'}?"
        )

    def __repr__(self) -> str:
        return f"RedisLookup({self._name!r})"


def _stored(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _there(value: object) -> bool:
    return value is not None


def _redis() -> Any:
    try:
        import redis
        import redis.backoff
        import redis.retry
    except ImportError as error:
        raise MissingDependencyError(
            "Lookups in Redis need redis, which is not installed; run: pip install 'millpond[redis]'"
        ) from error
    return redis
