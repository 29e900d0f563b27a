"""Finds the keys that Debezium's change events concern, to invalidate them in a partial cache.

An event is the JSON of one message's value, with or without its schema around it (`payload`). The invariant: **the
keys before and after the change are both returned**, because an update of a key column moves rows from one key to
another. A message without a value is the tombstone after a deletion, and is skipped.

Source: Debezium, "change events": `op`, `before` and `after`.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from millpond.errors import DataError, OptionError
from millpond.lookup.functions.function import Key
from millpond.lookup.sources.json_text import decoded_json, shown
from millpond.lookup.sources.values import readers

_OPERATIONS = ("c", "r", "u", "d")
_TRUNCATE, _MESSAGE = "t", "m"


def changed_keys(messages: Iterable[str | bytes | None], key_schema: pa.Schema) -> list[Key] | None:
    """Return the distinct keys that the events concern; None if the table was truncated, which concerns all keys.

    Args:
        messages: the values of the messages, as JSON; None is a tombstone.
        key_schema: the key columns, named as in the database: whole numbers, booleans or strings.

    Raises:
        DataError: a message is not a change event, or lacks a key column. Events of deleted or updated rows have those
            columns that the database's replica identity, or binlog, includes.
        OptionError: a key column has a type whose form in the events depends on Debezium's settings.

    >>> event = '{"before": {"code": "JFK", "gate": 1}, "after": {"code": "EWR", "gate": 1}, "op": "u"}'
    >>> changed_keys([event, None], pa.schema([("code", pa.string())]))
    [('JFK',), ('EWR',)]
    """
    for field in key_schema:
        if not (pa.types.is_integer(field.type) or field.type in (pa.string(), pa.bool_())):
            raise OptionError(
                f"key column {field.name!r}: expected a whole number, a boolean or a string to read from Debezium's "
                f"events, got {field.type}; read the events yourself, and call LookupTable.invalidate with the keys"
            )
    read = list(zip(key_schema.names, readers("a change event", key_schema), strict=True))
    keys: dict[Key, None] = {}
    for message in messages:
        if message is None:
            continue
        text = message if isinstance(message, bytes) else message.encode()
        event = decoded_json("a change event", text)
        event = event.get("payload", event) if isinstance(event, dict) else event
        operation = event.get("op") if isinstance(event, dict) else None
        if operation == _TRUNCATE:
            return None
        if operation == _MESSAGE:
            continue
        if operation not in _OPERATIONS:
            raise DataError(
                f"a change event: expected Debezium's JSON with an op of {', '.join(_OPERATIONS)} or {_TRUNCATE}, got "
                f"{shown(event)}"
            )
        for row in (event.get("before"), event.get("after")):
            if row is not None:
                keys[_key(row, read)] = None
    return list(keys)


def _key(row: Any, read: Any) -> Key:
    if not isinstance(row, dict) or any(name not in row for name, _ in read):
        raise DataError(
            f"a change event: expected a row with {', '.join(name for name, _ in read)}, got {shown(row)}; name the "
            "table's key columns as the database does, and have it tell them (replica identity, binlog_row_image)"
        )
    return tuple(reader(row[name]) for name, reader in read)
