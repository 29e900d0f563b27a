"""Names of values in a store: made from keys by a pattern, and read back as keys.

The Redis source uses it. The invariant: **a name is read as a key only if that key has this name**, and
no other key has it too. So a scan over names finds exactly the keys that lookups would find: if planes have
whole numbers, `plane:007` is not plane 7.

A name with several columns is split at the separators in every possible way. Usually only one of them gives
values of the columns' types.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from string import Formatter
from typing import Any

import pyarrow as pa

from millpond.errors import DataError, OptionError
from millpond.lookup.functions.function import Key
from millpond.lookup.functions.keys import PlainKeys
from millpond.lookup.sources.values import readers

_SPECIAL = re.compile(r"([*?\[\]\\^-])")


class ValueNames:
    """The names of keys by a pattern such as `plane:{tailnum}`.

    Args:
        where: the source's name in messages.
        pattern: the pattern, with every key column once in braces.
        key_schema: the names and types of the key columns.

    Raises:
        OptionError: the pattern does not have exactly the key columns.

    >>> names = ValueNames("planes", "plane:{year}", pa.schema([("year", pa.int64())]))
    >>> read = names.reader()
    >>> names.of((1999,)), read(b"plane:1999"), read(b"plane:01999"), names.glob
    ('plane:1999', (1999,), None, 'plane:*')
    """

    def __init__(self, where: str, pattern: str, key_schema: pa.Schema) -> None:
        self._where = where
        self._pattern = pattern
        self._key_schema = key_schema
        self._plain = PlainKeys(key_schema)
        self._columns: list[str] = []
        # The texts before the first column, between the columns, and after the last.
        self._between = [""]
        for text, column, _, _ in Formatter().parse(pattern):
            self._between[-1] += text
            if column is not None:
                self._columns.append(column)
                self._between.append("")
        if sorted(self._columns) != sorted(key_schema.names):
            raise OptionError(
                f"{where}: expected each key column once in braces "
                f"({', '.join('{' + column + '}' for column in key_schema.names)}), "
                f"got {', '.join(self._columns) or 'none'}"
            )
        several = len(self._columns) > 1 and not any(pa.types.is_binary(field.type) for field in key_schema)
        # With one column, no two values give the same name, so names need not be read back.
        self._readers = readers(where, key_schema) if several else []
        self.glob = "*".join(_SPECIAL.sub(r"\\\1", text) for text in self._between)
        """The pattern in the form of Redis' MATCH."""

    def of(self, key: Key) -> str:
        """Return the name of a key's value. Bytes that are no UTF-8 are escaped as by `surrogateescape`.

        Raises:
            DataError: another key has the same name.
        """
        name = self._name(key)
        if self._readers:
            self._refuse_shared(name, self._keys_of(name))
        return name

    def _name(self, key: Key) -> str:
        values = [_as_text(value) for value in self._plain(key)]
        return self._pattern.format(**dict(zip(self._key_schema.names, values, strict=True)))

    def reader(self) -> Callable[[bytes], Key | None]:
        """Return a function that reads a name: it returns the name's key, or None if there is none.

        The function raises a `DataError` if several keys have the name.

        Raises:
            OptionError: a key column has a type that cannot be read from names, such as bytes.
        """
        if any(pa.types.is_binary(field.type) for field in self._key_schema):
            raise OptionError(
                f"{self._where}: keys of bytes cannot be read back from names, so the values cannot be scanned; "
                "declare strings, or use lookup.cache = PARTIAL"
            )
        return self._read

    def _read(self, name: bytes) -> Key | None:
        try:
            text = name.decode()
        except UnicodeDecodeError:
            return None
        keys = self._keys_of(text)
        self._refuse_shared(text, keys)
        return keys.pop() if keys else None

    def _keys_of(self, name: str) -> set[Key]:
        first, *rest = self._between
        cuts = _cuts(name[len(first) :], rest) if name.startswith(first) else ()
        read = self._readers or readers(self._where, self._key_schema)
        return {key for cut in cuts if (key := self._key(read, cut)) is not None and self._name(key) == name}

    def _refuse_shared(self, name: str, keys: set[Key]) -> None:
        if len(keys) > 1:
            raise DataError(
                f"{self._where}: the name {name!r} can be read as keys {' and '.join(map(repr, sorted(keys)))}; "
                "put something between the columns that their values never have"
            )

    def _key(self, read: Sequence[Callable[[Any], Any]], cut: Sequence[str]) -> Key | None:
        by_column = dict(zip(self._columns, cut, strict=True))
        try:
            return tuple(one(by_column[column]) for column, one in zip(self._key_schema.names, read, strict=True))
        except DataError:
            # The values are not of the columns' types, so this is not a key.
            return None


def _as_text(value: Any) -> Any:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _cuts(text: str, after: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every way to split a whole text into values, where value i is followed by `after[i]`.

    >>> list(_cuts("a:b:c", [":", ""]))
    [('a', 'b:c'), ('a:b', 'c')]
    """
    if len(after) == 1:
        if text.endswith(after[0]):
            yield (text.removesuffix(after[0]),)
        return
    at = text.find(after[0])
    while at >= 0:
        for rest in _cuts(text[at + len(after[0]) :], after[1:]):
            yield text[:at], *rest
        at = text.find(after[0], at + 1)
