"""Encode the cells of one state as pairs of bytes, as spill files and raw segments of checkpoints hold them.

The kinds of state differ in what a cell is: a value, a list of values, or one entry of a map. A table here has the
form of a heap table of that kind: by key in its given form, and for maps then by map key.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any

from millpond.state.backend import lmdb_keys as places
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.protocols import ABSENT, Cells
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.key_types import as_row, as_rows, given_form
from millpond.state.types.ttl import alive_since_ms

_LENGTH = struct.Struct(">I")


def cell_bytes(descriptor: StateDescriptor, number: int) -> "FlatBytes | EntryBytes":
    """Return the encoder of a state's cells. Their places begin with `number`, which means nothing elsewhere."""
    codec = descriptor.codec(f"state {descriptor.name!r}")
    return _form(descriptor.kind, places.state_prefix(number), codec.dumps, codec.loads)


def lives(kind: StateKind) -> Callable[[bytes, bytes], Any]:
    """Return a function that reads since when a cell with a TTL is alive, in ms. For a list it reads each element.

    It decodes no value.
    """
    return _form(kind, b"", _unwritten, alive_since_ms).value


def laid_over(form: "FlatBytes | EntryBytes", pairs: Pairs, table: Mapping[Any, Any]) -> Pairs:
    """Return the pairs with the cells of a table put over them, in the order of places. ABSENT cells are left out.

    Pairs must be in that order. A table changes few cells of a key group, so each is found by binary search.
    """
    if not table:
        return pairs
    kept, gone = form.pairs(table, table)
    # The pairs may come from another writer, which gave the state another number.
    number = pairs.places[0][: places.STATE_BYTES] if len(pairs) else form.prefix
    stored, added = pairs.stored.copy(), []
    for at, data in kept:
        place = number + at[places.STATE_BYTES :]
        position = _position(pairs.places, place)
        if position is None:
            added.append((place, data))
        else:
            stored[position] = data
    removed = {_position(pairs.places, number + at[places.STATE_BYTES :]) for at in gone} - {None}
    if not added and not removed:
        return Pairs(pairs.places, stored)
    there = zip(pairs.places, stored, strict=True)
    left = sorted([pair for position, pair in enumerate(there) if position not in removed] + added)
    return Pairs([place for place, _ in left], [data for _, data in left])


def _position(in_order: list[bytes], place: bytes) -> int | None:
    position = bisect_left(in_order, place)
    return position if position < len(in_order) and in_order[position] == place else None


def _form(
    kind: StateKind, prefix: bytes, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]
) -> "FlatBytes | EntryBytes":
    if kind is StateKind.MAP:
        return EntryBytes(prefix, dumps, loads)
    if kind is StateKind.LIST:
        return FlatBytes(prefix, list_dumps(dumps), list_loads(loads))
    return FlatBytes(prefix, dumps, loads)


def _unwritten(_value: Any) -> bytes:
    raise NotImplementedError("lives are only read.")


class FlatBytes:
    """The cells of value and list states."""

    def __init__(self, prefix: bytes, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> None:
        self.prefix = prefix
        self.dumps = dumps
        self.loads = loads
        self.place: Callable[[Any], bytes] = places.flat_place(prefix)
        """Return the place of a key's cell, from the key's given form."""

    def value(self, at: bytes, stored: bytes) -> Any:
        """Decode a cell's value."""
        return self.loads(places.flat_data(at, stored))

    def pairs(self, table: Mapping[Any, Any], keys: Collection[Any]) -> tuple[list[Pair], list[bytes]]:
        """Return the pairs to put and the places to delete, for these keys of a table."""
        kept, gone = self.placed(list(map(self.place, keys)), list(map(table.get, keys, repeat(ABSENT))))
        return list(kept), gone

    def placed(self, where: list[bytes], values: list[Any]) -> tuple[Pairs, list[bytes]]:
        """Return the same for cells whose places are known."""
        kept, stored, gone = places.flat_columns(where, values, self.dumps)
        return Pairs(kept, stored), gone

    def add(self, table: dict[Any, Any], pairs: Iterable[Pair]) -> None:
        """Decode pairs and put them into a table."""
        for at, stored in pairs:
            table[given_form(places.flat_key(at, stored))] = self.value(at, stored)

    def cells(self, key_group: int, pairs: Iterable[Pair]) -> Cells:
        """Decode pairs as cells."""
        table: dict[Any, Any] = {}
        self.add(table, pairs)
        return Cells([key_group] * len(table), as_rows(table), None, list(table.values()))


class EntryBytes:
    """The cells of map states: each entry is one cell."""

    def __init__(self, prefix: bytes, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> None:
        self.prefix = prefix
        self.dumps = dumps
        self.loads = loads

    def value(self, at: bytes, stored: bytes) -> Any:
        """Decode a cell's value."""
        return self.loads(places.entry_data(at, stored))

    def entries(self, key: Any) -> bytes:
        """Return the prefix of a key's entries, from its given form."""
        return places.entries_prefix(self.prefix, as_row(key))

    def pairs(self, table: Mapping[Any, Any], keys: Collection[Any]) -> tuple[list[Pair], list[bytes]]:
        """Return the pairs to put and the places to delete, for all entries of these keys in a table."""
        kept: list[Pair] = []
        gone: list[bytes] = []
        for key in keys:
            prefix, row = self.entries(key), as_row(key)
            for map_key, value in table.get(key, places.NOTHING).items():
                at = places.entry_place(prefix, map_key)
                if value is ABSENT:
                    gone.append(at)
                else:
                    kept.append((at, places.entry_stored(at, row, map_key, self.dumps(value))))
        return kept, gone

    def add(self, table: dict[Any, Any], pairs: Iterable[Pair]) -> None:
        """Decode pairs and put them into a table."""
        for key, map_key, data in self.decoded(pairs):
            table.setdefault(given_form(key), {})[map_key] = self.loads(data)

    def decoded(self, pairs: Iterable[Pair]) -> Iterator[places.Entry]:
        """Decode keys and map keys; the values stay bytes."""
        return (places.entry(at, stored) for at, stored in pairs)

    def cells(self, key_group: int, pairs: Iterable[Pair]) -> Cells:
        """Decode pairs as cells."""
        found = Cells(map_keys=[])
        for key, map_key, data in self.decoded(pairs):
            found.keys.append(key)
            found.map_keys.append(map_key)  # type: ignore[union-attr]
            found.values.append(self.loads(data))
        found.key_groups = [key_group] * len(found.keys)
        return found


def list_dumps(dumps: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return a function that encodes a list: each element's bytes after their length."""
    pack = _LENGTH.pack
    return lambda values: b"".join(part for data in map(dumps, values) for part in (pack(len(data)), data))


def list_loads(loads: Callable[[bytes], Any]) -> Callable[[bytes], list[Any]]:
    """Return a function that decodes what that of `list_dumps` returned."""
    length_at, size = _LENGTH.unpack_from, _LENGTH.size

    def of_bytes(data: bytes) -> list[Any]:
        values, start = [], 0
        while start < len(data):
            end = start + size + length_at(data, start)[0]
            values.append(loads(data[start + size : end]))
            start = end
        return values

    return of_bytes
