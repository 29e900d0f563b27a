"""Keys as users write them: an atomic Python value, or a tuple of such. Backends use tuples under a schema.

The dictionaries of state on the heap also hold keys in this *given form*. For a key with one field, a tuple around it
would take a third of the heap's memory, and one more memory access per lookup.

Invariant: a field of a key is atomic, never a tuple. So each form determines the other.
"""

import datetime as dt
import decimal
from collections.abc import Callable, Collection
from operator import itemgetter
from typing import Any, get_args, get_origin

import pyarrow as pa

from millpond.errors import OptionError
from millpond.state.types.rows import Row

_first: Callable[[Row], Any] = itemgetter(0)

_ARROW: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.datetime: pa.timestamp("us", tz="UTC"),
    dt.timedelta: pa.duration("us"),
    decimal.Decimal: pa.decimal128(38, 18),
}


def key_schema(kind: Any, what: str) -> pa.Schema:
    """Return the schema of keys of a Python type, or a tuple of types. A schema is returned as it is.

    `what` names the declaration in the OptionError for a type that cannot be a key.

    >>> key_schema(tuple[str, int], "key_type")
    key_0: string
    key_1: int64
    """
    if isinstance(kind, pa.Schema):
        return kind
    kinds = get_args(kind) if get_origin(kind) is tuple else (kind,)
    if not kinds or any(each not in _ARROW for each in kinds):
        known = ", ".join(each.__name__ for each in _ARROW)
        raise OptionError(
            f"{what} is {kind!r}; expected one of {known}, a tuple of them as in tuple[str, int], or an Arrow schema."
        )
    names = ["key"] if len(kinds) == 1 else [f"key_{position}" for position in range(len(kinds))]
    return pa.schema([pa.field(name, _ARROW[each]) for name, each in zip(names, kinds, strict=True)])


def given_form(key: Row) -> Any:
    """Return a key as users know it.

    >>> given_form(("ann",)), given_form(("ann", 7))
    ('ann', ('ann', 7))
    """
    return key[0] if len(key) == 1 else key


def given_forms(keys: Collection[Row]) -> list[Any]:
    """Return many keys of one schema as users know them.

    >>> given_forms([("ann",), ("bob",)])
    ['ann', 'bob']
    """
    if keys and len(next(iter(keys))) == 1:
        return list(map(_first, keys))
    return list(keys)


def as_row(given: Any) -> Row:
    """Return a key as backends know it, from its given form.

    >>> as_row("ann"), as_row(("ann", 7))
    (('ann',), ('ann', 7))
    """
    return given if type(given) is tuple else (given,)


def as_rows(given: Collection[Any]) -> list[Row]:
    """Return many keys as backends know them.

    >>> as_rows(["ann", "bob"])
    [('ann',), ('bob',)]
    """
    if tuple in set(map(type, given)):
        return list(map(as_row, given))
    return list(zip(given, strict=True))
