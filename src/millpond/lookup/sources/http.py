"""A web service that answers in JSON, as a lookup source and as a scan.

The rows of a key are at a URL made from the key, such as `https://shop/planes/{tailnum}`: one object,
a list of objects, or status 404 for none. Where the service answers for many keys at once, one POST
asks for a whole batch.

The invariant: no row is said only where the service says so, by 404, by an empty list or null.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from string import Formatter
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

import pyarrow as pa

from millpond.errors import DataError, OptionError
from millpond.lookup.functions.function import Key, LookupFunction, Row, Rows
from millpond.lookup.functions.keys import PlainKeys, check_key_types
from millpond.lookup.sources.declared import declared_schema
from millpond.lookup.sources.http_client import JsonClient
from millpond.lookup.sources.values import readers

RowsOf: TypeAlias = Callable[[Any], Any]
"""Takes the rows out of a decoded body: an object, a list of objects, or None for none."""


class HttpLookup(LookupFunction):
    """Rows of a JSON service by key; thread-safe.

    One request at a time; `ThreadedLookup(HttpLookup(...), threads=16)` has many under way.

    - Delivery: one GET a key, or one POST a batch of keys. Freshness: what the service answers.
      Recovery: a lost connection is opened again.

    Args:
        url: where the rows of a key are, with every key column in braces.
        key_schema: the names and types of the key columns.
        row_schema: the names and types of the columns of a row: members of the JSON objects.
        rows: takes the row objects out of a body; by default the body is one or a list of them.
        batch_url: where many keys can be asked for at once: POST `{"keys": [{"tailnum": "N1"}, …]}`,
            answered by a list of objects with the key columns and the row's.
        headers: sent with every request, such as an `Authorization`.
        timeout_ms: how long the service may take.

    Raises:
        OptionError: the URL has not exactly the key columns, or a type cannot be read from JSON.
        UnavailableError: the service does not answer, is overloaded or fails (429, 5xx).
        DataError: it refuses, or answers with something else than such rows.

    >>> HttpLookup("http://localhost/planes/{tail}", pa.schema([("tailnum", pa.string())]), pa.schema([]))
    Traceback (most recent call last):
    millpond.errors.OptionError: http://localhost/planes/{tail}: expected each key column once in braces ...
    """

    def __init__(
        self,
        url: str,
        key_schema: pa.Schema,
        row_schema: pa.Schema,
        *,
        rows: RowsOf | None = None,
        batch_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int = 5_000,
    ) -> None:
        self._url = url
        self._batch_url = batch_url
        check_key_types(url, key_schema)
        columns = [field for _, field, _, _ in Formatter().parse(url) if field is not None]
        if sorted(columns) != sorted(key_schema.names):
            raise OptionError(
                f"{url}: expected each key column once in braces "
                f"({', '.join('{' + name + '}' for name in key_schema.names)}), got {', '.join(columns) or 'none'}"
            )
        if batch_url is not None and urlsplit(batch_url)[:2] != urlsplit(url)[:2]:
            raise OptionError(f"{batch_url}: expected the server of {url}")
        path = url.partition("?")[0]
        self._in_path = [name for name in columns if "{" + name + "}" in path.split("/")]
        self._rows = rows
        self._client = JsonClient(url, headers or {}, timeout_ms)
        self.key_schema = key_schema
        self.row_schema = row_schema
        self._plain = PlainKeys(key_schema)
        self._objects = _Objects(url, row_schema)
        self._key_objects = _Objects(url, key_schema)

    @property
    def batched(self) -> bool:
        """Whether there is a URL for many keys."""
        return self._batch_url is not None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def lookup(self, keys: Key) -> Rows:
        """The rows of one key, by a GET."""
        values = zip(self.key_schema.names, self._plain(keys), strict=True)
        quoted = {name: _quoted(value) for name, value in values}
        for name in self._in_path:
            if quoted[name] in ("", ".", ".."):
                raise DataError(
                    f"{self._url}, key column {name!r}: {quoted[name]!r} in a path is another resource than that of a "
                    "key; leave such events out, or ask by batch_url"
                )
        url = self._url.format(**quoted)
        return [self._objects.row(thing) for thing in _listed(self._client.get(_target(url)), self._rows)]

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """The rows of every key, by one POST where the service has a URL for it."""
        if self._batch_url is None:
            return super().lookup_many(keys)
        asked = [dict(zip(self.key_schema.names, self._plain(key), strict=True)) for key in keys]
        found: dict[Key, Rows] = {key: [] for key in keys}
        for thing in _listed(self._client.post(_target(self._batch_url), {"keys": asked}), self._rows):
            key = self._key_objects.row(thing)
            found.setdefault(key, []).append(self._objects.row(thing))
        return found

    def __repr__(self) -> str:
        return f"HttpLookup({self._url!r})"


class HttpScan:
    """A whole table that a JSON service gives at one URL, for a full cache.

    Args:
        url: where it is.
        key_schema: the names and types of the key columns.
        row_schema: the names and types of the columns of a row.
        rows: takes the list of row objects out of the body; by default the body is that list.
        headers: sent with the request.
        timeout_ms: how long the service may take.

    Raises:
        UnavailableError: the service does not answer, is overloaded or fails.
        DataError: it refuses, or answers with something else than such rows.
    """

    def __init__(
        self,
        url: str,
        key_schema: pa.Schema,
        row_schema: pa.Schema,
        *,
        rows: RowsOf | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_ms: int = 30_000,
    ) -> None:
        check_key_types(url, key_schema)
        self._url = url
        self._rows = rows
        self._client = JsonClient(url, headers or {}, timeout_ms)
        self.key_schema = key_schema
        self.row_schema = row_schema

    def scan(self) -> pa.Table:
        """The whole table; nothing at that URL is an error and not an empty table."""
        body = self._client.get(_target(self._url))
        self._client.close()
        if body is None:
            raise DataError(f"{self._url}: there is nothing (404, or null); check the URL")
        schema = declared_schema(self.key_schema, self.row_schema)
        objects = _Objects(self._url, schema)
        rows = [objects.row(thing) for thing in _listed(body, self._rows)]
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        try:
            return pa.table(
                [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
            )
        except (pa.ArrowInvalid, OverflowError) as error:
            raise DataError(f"{self._url}: a value does not fit its declared type: {error}") from error

    def __repr__(self) -> str:
        return f"HttpScan({self._url!r})"


class _Objects:
    """Makes rows of JSON objects."""

    def __init__(self, where: str, schema: pa.Schema) -> None:
        self._where = where
        self._read = list(zip(schema.names, readers(where, schema), strict=True))

    def row(self, thing: Any) -> Row:
        if not isinstance(thing, dict) or any(name not in thing for name, _ in self._read):
            raise DataError(
                f"{self._where}: expected JSON objects with {', '.join(name for name, _ in self._read)}, got "
                f"{thing!r}; mend the service, declare other columns, or take the rows out of the body with `rows`"
            )
        return tuple(read(thing[name]) for name, read in self._read)


def _listed(body: Any, rows: RowsOf | None) -> list[Any]:
    things = body if rows is None or body is None else rows(body)
    if things is None:
        return []
    return things if isinstance(things, list) else [things]


def _target(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return quote(value, safe="")
    return quote(value.isoformat() if isinstance(value, (date, datetime)) else str(value), safe="")
