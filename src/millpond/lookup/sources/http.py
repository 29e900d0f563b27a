"""A web service that answers in JSON, as a lookup source and as a scan.

The rows of a key are at a URL made from the key, such as `https://shop/planes/{tailnum}`: one object,
a list of objects, or status 404 for none. If the service can answer for many keys, one POST requests a
whole batch.

The invariant: a key has no rows only if the service says so, by 404, an empty list or null. In the answer to
a POST, a key that is left out has no rows.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from string import Formatter
from typing import Any, TypeAlias
from urllib.parse import quote

import pyarrow as pa

from millpond.errors import DataError, OptionError
from millpond.lookup.functions.function import Key, LookupFunction, Row, Rows
from millpond.lookup.functions.keys import PlainKeys, check_key_types
from millpond.lookup.sources.declared import declared_schema
from millpond.lookup.sources.http_client import JsonClient
from millpond.lookup.sources.json_text import shown
from millpond.lookup.sources.values import readers
from millpond.masking import masked, split_url

RowsOf: TypeAlias = Callable[[Any], Any]
"""Takes the rows out of a decoded body. Returns an object, a list of objects, or None for no rows."""


class HttpLookup(LookupFunction):
    """Rows of a JSON service by key; thread-safe.

    It makes one request at a time; `ThreadedLookup(HttpLookup(...), threads=16)` makes many.

    - Delivery: one GET per key, or one POST per batch of keys.
    - Freshness: what the service answers.
    - Recovery: a lost connection is opened again.

    Args:
        url: the URL of a key's rows, with every key column in braces.
        key_schema: the names and types of the key columns.
        row_schema: the names and types of the columns of a row: members of the JSON objects.
        rows: takes the row objects out of a body; by default the body is one object or a list of objects.
        batch_url: the URL for many keys. The request is POST `{"keys": [{"tailnum": "N1"}, …]}`, and the answer a
            list of objects with the columns of the key and the row.
        headers: sent with every request, such as an `Authorization`.
        timeout_ms: the longest wait for a connection, and for the next part of an answer.

    Raises:
        OptionError: the URL does not have exactly the key columns, or a type cannot be read from JSON.
        UnavailableError: the service does not answer, is overloaded or fails (408, 425, 429, 5xx).
        DataError: the service refuses the request, or its answer does not have such rows.

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
        self._where = masked(url)
        self._batch_url = batch_url
        check_key_types(self._where, key_schema)
        columns = _columns(url)
        if sorted(columns) != sorted(key_schema.names):
            raise OptionError(
                f"{self._where}: expected each key column once in braces "
                f"({', '.join('{' + name + '}' for name in key_schema.names)}), got {', '.join(columns) or 'none'}"
            )
        server = split_url(url)[:2]
        if batch_url is not None and split_url(batch_url)[:2] != server:
            raise OptionError(f"{masked(batch_url)}: expected the server of {self._where}")
        if _columns("".join(server)):
            raise OptionError(f"{self._where}: a key names no server; put the key columns into the path or the query")
        path, mark, query = _target(url).partition("?")
        self._segments = [(segment, bool(_columns(segment))) for segment in path.split("/")]
        self._query = mark + query
        self._rows = rows
        self._client = JsonClient(url, headers or {}, timeout_ms)
        self.key_schema = key_schema
        self.row_schema = row_schema
        self._plain = PlainKeys(key_schema)
        self._objects = _Objects(self._where, row_schema)
        self._key_objects = _Objects(self._where, key_schema)

    @property
    def batched(self) -> bool:
        """Whether `batch_url` is given."""
        return self._batch_url is not None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def lookup(self, keys: Key) -> Rows:
        """Return the rows of one key, by a GET."""
        values = zip(self.key_schema.names, self._plain(keys), strict=True)
        quoted = {name: _quoted(value) for name, value in values}
        path = "/".join(self._segment(*segment, quoted) for segment in self._segments)
        target = path + self._query.format(**quoted)
        return [self._objects.row(thing) for thing in _listed(self._client.get(target), self._rows)]

    def _segment(self, segment: str, has_key: bool, quoted: Mapping[str, str]) -> str:
        """Fill in a part of the path between two slashes. A key may not lead to another path."""
        if not has_key:
            return segment.format()
        filled = segment.format(**quoted)
        names = _columns(segment)
        if filled in ("", ".", "..") or not all(quoted[name] for name in names):
            raise DataError(
                f"{self._where}, key column {names[0]!r}: {filled!r} in a path is another resource than that of a "
                "key; leave such events out, or ask by batch_url"
            )
        return filled

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key, by one POST if there is a `batch_url`."""
        if self._batch_url is None:
            return super().lookup_many(keys)
        asked = [dict(zip(self.key_schema.names, self._plain(key), strict=True)) for key in keys]
        found: dict[Key, Rows] = {key: [] for key in keys}
        for thing in _listed(self._client.post(_target(self._batch_url), {"keys": asked}), self._rows):
            key = self._key_objects.row(thing)
            found.setdefault(key, []).append(self._objects.row(thing))
        return found

    def __repr__(self) -> str:
        return f"HttpLookup({self._where!r})"


class HttpScan:
    """A whole table that a JSON service gives at one URL, for a full cache.

    Args:
        url: the URL of the table.
        key_schema: the names and types of the key columns.
        row_schema: the names and types of the columns of a row.
        rows: takes the list of row objects out of the body; by default the body is that list.
        headers: sent with the request.
        timeout_ms: the longest wait for a connection, and for the next part of the answer.

    Raises:
        UnavailableError: the service does not answer, is overloaded or fails.
        DataError: the service refuses the request, or its answer does not have such rows.
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
        check_key_types(masked(url), key_schema)
        self._url = url
        self._rows = rows
        self._client = JsonClient(url, headers or {}, timeout_ms)
        self.key_schema = key_schema
        self.row_schema = row_schema

    def scan(self) -> pa.Table:
        """Return the whole table. Status 404 or a null body is an error, not an empty table."""
        body = self._client.get(_target(self._url))
        self._client.close()
        if body is None:
            raise DataError(f"{masked(self._url)}: there is nothing (404, or null); check the URL")
        schema = declared_schema(self.key_schema, self.row_schema)
        objects = _Objects(masked(self._url), schema)
        rows = [objects.row(thing) for thing in _listed(body, self._rows)]
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        try:
            return pa.table(
                [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
            )
        except (pa.ArrowInvalid, OverflowError) as error:
            raise DataError(f"{masked(self._url)}: a value does not fit its declared type: {error}") from error

    def version(self) -> str | None:
        """Return the table's strong ETag or its Last-Modified, as a HEAD request gives them; None without either."""
        version = self._client.version(_target(self._url))
        self._client.close()
        return version

    def __repr__(self) -> str:
        return f"HttpScan({masked(self._url)!r})"


class _Objects:
    """Converts JSON objects to rows."""

    def __init__(self, where: str, schema: pa.Schema) -> None:
        self._where = where
        self._read = list(zip(schema.names, readers(where, schema), strict=True))

    def row(self, thing: Any) -> Row:
        if not isinstance(thing, dict) or any(name not in thing for name, _ in self._read):
            raise DataError(
                f"{self._where}: expected JSON objects with {', '.join(name for name, _ in self._read)}, got "
                f"{shown(thing)}; mend the service, declare other columns, or take the rows out of the body with `rows`"
            )
        return tuple(read(thing[name]) for name, read in self._read)


def _listed(body: Any, rows: RowsOf | None) -> list[Any]:
    things = body if rows is None or body is None else rows(body)
    if things is None:
        return []
    return things if isinstance(things, list) else [things]


def _columns(template: str) -> list[str]:
    """Return the names in braces."""
    try:
        return [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise OptionError(f"{masked(template)}: {error}; write each key column in braces") from error


def _target(url: str) -> str:
    parts = split_url(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return quote(value, safe="")
    return quote(value.isoformat() if isinstance(value, (date, datetime)) else str(value), safe="")
