"""The cells of one state as pairs of bytes, as they lie in a spill file and in a raw segment of a checkpoint.

Each kind of state has one: what differs is whether a cell is a value, a list of them, or an entry of a map.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from millpond.state.backend import ABSENT, Cells
from millpond.state.descriptor import StateDescriptor, StateKind
from millpond.state.rows import Row
from millpond.state.spillable import places
from millpond.state.ttl import alive_since_ms

_LENGTH = struct.Struct(">I")

Pair = tuple[bytes, bytes]
"""Of a cell: its place and what stands there."""


class CellBytes(Protocol):
    """One state's cells to bytes and back. A table is what a heap table of that kind is: by key, and by map key."""

    prefix: bytes

    def value(self, at: bytes, stored: bytes) -> Any:
        """What a cell holds."""
        ...

    def pairs(self, table: Mapping[Row, Any], keys: Iterable[Row]) -> tuple[list[Pair], list[bytes]]:
        """What to put for these keys' cells, and the places to delete: of those that are ABSENT in the table."""
        ...

    def add(self, table: dict[Row, Any], pairs: Iterable[Pair]) -> None:
        """Put cells into a table."""
        ...

    def cells(self, key_group: int, pairs: Iterable[Pair]) -> Cells:
        """Pairs as cells."""
        ...


def cell_bytes(descriptor: StateDescriptor, number: int) -> "FlatBytes | EntryBytes":
    """What reads and writes the cells of a state. Its places begin with `number`, which means nothing elsewhere."""
    codec = descriptor.codec(f"state {descriptor.name!r}")
    return _form(descriptor.kind, places.state_prefix(number), codec.dumps, codec.loads)


def lives(kind: StateKind) -> Callable[[bytes, bytes], Any]:
    """Reads since when a cell with a TTL is alive, in ms; of a list, each element. It decodes no value."""
    return _form(kind, b"", _unwritten, alive_since_ms).value


def laid_over(form: "FlatBytes | EntryBytes", pairs: list[Pair], table: Mapping[Row, Any]) -> list[Pair]:
    """Pairs of one key group with the cells of a table in place of theirs, ABSENT ones gone."""
    if not table:
        return pairs
    kept, gone = form.pairs(table, table)
    # The number of the state may be another writer's.
    replaced = {at[places.STATE_BYTES :] for at, _ in kept}
    replaced.update(at[places.STATE_BYTES :] for at in gone)
    return [pair for pair in pairs if pair[0][places.STATE_BYTES :] not in replaced] + kept


def _form(
    kind: StateKind, prefix: bytes, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]
) -> "FlatBytes | EntryBytes":
    if kind is StateKind.MAP:
        return EntryBytes(prefix, dumps, loads)
    if kind is StateKind.LIST:
        return FlatBytes(prefix, _list_dumps(dumps), _list_loads(loads))
    return FlatBytes(prefix, dumps, loads)


def _unwritten(_value: Any) -> bytes:
    raise NotImplementedError("lives are only read.")


class FlatBytes:
    """The cells of value and list states."""

    def __init__(self, prefix: bytes, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> None:
        self.prefix = prefix
        self.dumps = dumps
        self.loads = loads

    def place(self, key: Row) -> bytes:
        """Where a key's cell lies."""
        return places.flat_place(self.prefix, key)

    def value(self, at: bytes, stored: bytes) -> Any:
        """What a cell holds."""
        return self.loads(places.flat_data(at, stored))

    def pairs(self, table: Mapping[Row, Any], keys: Iterable[Row]) -> tuple[list[Pair], list[bytes]]:
        """What to put, and what to delete."""
        kept: list[Pair] = []
        gone: list[bytes] = []
        place, dumps, is_long, stored = self.place, self.dumps, places.is_long, places.flat_stored
        for key in keys:
            at, value = place(key), table.get(key, ABSENT)
            if value is ABSENT:
                gone.append(at)
            else:
                data = dumps(value)
                kept.append((at, stored(at, key, data) if is_long(at) else data))
        return kept, gone

    def add(self, table: dict[Row, Any], pairs: Iterable[Pair]) -> None:
        """Put cells into a table."""
        for at, stored in pairs:
            table[places.flat_key(at, stored)] = self.value(at, stored)

    def cells(self, key_group: int, pairs: Iterable[Pair]) -> Cells:
        """Pairs as cells."""
        table: dict[Row, Any] = {}
        self.add(table, pairs)
        return Cells([key_group] * len(table), list(table), None, list(table.values()))


class EntryBytes:
    """The cells of map states: each entry is one."""

    def __init__(self, prefix: bytes, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> None:
        self.prefix = prefix
        self.dumps = dumps
        self.loads = loads

    def value(self, at: bytes, stored: bytes) -> Any:
        """What a cell holds."""
        return self.loads(places.entry_data(at, stored))

    def entries(self, key: Row) -> bytes:
        """The prefix of a key's entries."""
        return places.entries_prefix(self.prefix, key)

    def pairs(self, table: Mapping[Row, Any], keys: Iterable[Row]) -> tuple[list[Pair], list[bytes]]:
        """What to put, and what to delete: the entries of these keys."""
        kept: list[Pair] = []
        gone: list[bytes] = []
        for key in keys:
            prefix = self.entries(key)
            for map_key, value in table.get(key, places.NOTHING).items():
                at = places.entry_place(prefix, map_key)
                if value is ABSENT:
                    gone.append(at)
                else:
                    kept.append((at, places.entry_stored(at, key, map_key, self.dumps(value))))
        return kept, gone

    def add(self, table: dict[Row, Any], pairs: Iterable[Pair]) -> None:
        """Put cells into a table."""
        for key, map_key, data in self.decoded(pairs):
            table.setdefault(key, {})[map_key] = self.loads(data)

    def decoded(self, pairs: Iterable[Pair]) -> Iterator[places.Entry]:
        """Pairs as tuples and the bytes of values."""
        return (places.entry(at, stored) for at, stored in pairs)

    def cells(self, key_group: int, pairs: Iterable[Pair]) -> Cells:
        """Pairs as cells."""
        found = Cells(map_keys=[])
        for key, map_key, data in self.decoded(pairs):
            found.keys.append(key)
            found.map_keys.append(map_key)  # type: ignore[union-attr]
            found.values.append(self.loads(data))
        found.key_groups = [key_group] * len(found.keys)
        return found


def _list_dumps(dumps: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A list as its elements' bytes, each after its length."""
    pack = _LENGTH.pack
    return lambda values: b"".join(part for data in map(dumps, values) for part in (pack(len(data)), data))


def _list_loads(loads: Callable[[bytes], Any]) -> Callable[[bytes], list[Any]]:
    def of_bytes(data: bytes) -> list[Any]:
        values, start, size = [], 0, _LENGTH.size
        while start < len(data):
            end = start + size + _LENGTH.unpack_from(data, start)[0]
            values.append(loads(data[start + size : end]))
            start = end
        return values

    return of_bytes
