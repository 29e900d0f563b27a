"""The handles of states in RocksDB: each use is one read or write of the database, with little Python around it.

Every handle keeps the current key's db key until the key or its group changes. So a get and the update after it encode
the key once. An update does not read. The changes of an open version are its changed db keys, from which
delta, rollback and revert are made.

Invariant: a db key is in `changed` before the database changes under it.

Values are bytes in the database, so decoding makes a copy of a mutable value. The copy is kept in `handed` while the
key stays current. So a second get returns the same object, and memory does not grow with the number of keys that a
version reads.
"""

# ruff: noqa: D102 - the protocols in backend/protocols.py say what the methods do
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from millpond.state.backend.current_key import Who, no_current_key
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.protocols import ABSENT, Cells
from millpond.state.backend.sums import PlainValue, Sums
from millpond.state.rocksdb.batch_access import ManyInDatabase
from millpond.state.rocksdb.changed_keys import ChangedKeys
from millpond.state.rocksdb.database import Database
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.ordered_keys import (
    GROUP_PREFIX,
    KEY_PREFIX,
    STATE_PREFIX,
    decode_key,
    encode_key,
    encode_keys,
)
from millpond.state.types.rows import Row, RowCodec

_PIECE = 200
"""Cells of a delta that are read at a time. They are objects, and the state may be larger than memory."""


class Change(NamedTuple):
    """The changes of one state in a version, to be read from the version's snapshot."""

    state: "RocksDbState"
    changed: Any

    def cells(self, read: Callable[[bytes], bytes | None]) -> Iterator[Cells]:
        """Yield the changed cells in pieces."""
        return self.state.changes(self.changed, read)


class RocksDbState:
    """What the handles of the three kinds share. `number` stands for the state in db keys."""

    def __init__(self, descriptor: StateDescriptor, number: int, context: KeyContext, database: Database) -> None:
        self.descriptor = descriptor
        self.prefix = STATE_PREFIX.pack(number)
        self.changed = ChangedKeys()
        self.committed_changed = ChangedKeys()
        self.handed: dict[bytes, Any] = {}
        self._note = self.changed.recent.add
        self._number = number
        self._context = context
        self._database = database
        self.use(database.handle)
        codec = descriptor.codec(Who(f"state {descriptor.name!r}", context))
        self._check = codec.check
        self._mutable = codec.mutable
        self.dumps: Callable[[Any], bytes] = codec.dumps
        """Encodes a cell's value."""
        self.loads: Callable[[bytes], Any] = codec.loads
        self._key: Row | None = None
        self._key_group = -1
        self._at = b""

    def use(self, handle: Any) -> None:
        """Set what the handle reads and writes through: the database's own handle, or a replacement."""
        self._db = handle
        self._read = handle.get

    def key_prefix(self, key_group: int, key: Any, /) -> bytes:
        """Return the db key of a key's cell; for a map, the beginning of the db keys of its entries."""
        encoded = encode_key(key)
        return KEY_PREFIX.pack(self._number, key_group, len(encoded)) + encoded

    place = key_prefix

    def places_of(self, key_group: int, keys: Sequence[Row]) -> list[bytes]:
        """Return the db keys of many keys of a key group."""
        encoded = encode_keys(keys)
        # Many keys have one length, and so begin alike.
        prefixes = {length: KEY_PREFIX.pack(self._number, key_group, length) for length in set(map(len, encoded))}
        return [prefixes[len(key)] + key for key in encoded]

    def read(self, place: bytes) -> Any:
        data = self._data(place)
        return None if data is None else self.loads(data)

    def read_all(self, places: list[bytes]) -> list[Any]:
        loads = self.loads
        return [None if data is None else loads(data) for data in self.data_of(places)]

    def data_of(self, places: list[bytes]) -> list[bytes | None]:
        """Return the bytes of many cells, in one read."""
        try:
            data: list[bytes | None] = self._read(places)
        except Exception as error:
            raise self._database.failure(error) from error
        return data

    def put_all(self, places: list[bytes], values: list[Any]) -> None:
        self.changed.update(places)
        self.handed = {}
        dumps = self.dumps
        self._database.write(places, [None if value is None else dumps(value) for value in values])

    def of_key(self, key_group: int, key: Row) -> Cells:
        value = self.read(self.place(key_group, key))
        return Cells() if value is None else Cells([key_group], [key], None, [value])

    def end_version(self) -> "Change":
        """Begin another version. Return the changes of this one."""
        self.committed_changed = self.changed
        self._begin()
        return Change(self, self.committed_changed)

    def forget_changes(self) -> None:
        """Begin the open version again, without its changes."""
        self._begin()

    def _begin(self) -> None:
        self.changed = ChangedKeys()
        self._note = self.changed.recent.add
        self.handed = {}

    def rows_of(self, changed: Iterable[bytes], version: Any) -> Iterator[bytes]:  # noqa: ARG002 - a cell is one row
        """Yield the db keys of changed cells and of all rows kept beside them, now or in another version."""
        return iter(changed)

    def changes(self, changed: Any, read: Callable[[bytes], bytes | None]) -> Iterator[Cells]:
        """Yield a version's changes, in the order of the database, a few hundred cells at a time."""
        remaining = iter(changed)
        while piece := list(islice(remaining, _PIECE)):
            yield self.cells_of((at, read(at)) for at in piece)

    def group_prefix(self, key_group: int) -> bytes:
        """Return the beginning of every db key of a key group."""
        return GROUP_PREFIX.pack(self._number, key_group)

    def cells_of(self, entries: Iterable[tuple[bytes, bytes | None]]) -> Cells:
        """Decode db keys and their bytes as cells."""
        cells, loads = Cells(), self.loads
        for at, data in entries:
            _, key_group, length = KEY_PREFIX.unpack_from(at)
            cells.key_groups.append(key_group)
            cells.keys.append(decode_key(at[KEY_PREFIX.size : KEY_PREFIX.size + length]))
            cells.values.append(ABSENT if data is None else loads(data))
        return cells

    def entries_of(self, cells: Cells) -> tuple[list[bytes], list[bytes | None]]:
        """Encode cells as db keys and the bytes to write there: the inverse of `cells_of`."""
        dumps = self.dumps
        return self._places(cells), [None if value is ABSENT else dumps(value) for value in cells.values]

    def _places(self, cells: Cells) -> list[bytes]:
        """Return the db key of each cell."""
        return list(map(self.place, cells.key_groups, cells.keys))

    def keys(self) -> Iterator[tuple[int, Row]]:
        """Yield key group and key of every key, each once."""
        last = None
        for at, _ in self._database.scan(self.prefix):
            _, key_group, length = KEY_PREFIX.unpack_from(at)
            cell = at[: KEY_PREFIX.size + length]
            if cell != last:
                last = cell
                yield key_group, decode_key(cell[KEY_PREFIX.size :])

    def write(self, cells: Cells) -> None:
        """Put or delete cells in the open version, all of them or, if it fails, none."""
        self.put_all(self._places(cells), [None if value is ABSENT else value for value in cells.values])

    def exists(self) -> bool:
        return self._data(self._turned()) is not None

    def clear(self) -> None:
        at = self._turned()
        if self._data(at) is not None:
            self._delete(at)

    def _turned(self) -> bytes:
        """Return the db key of the current key."""
        context = self._context
        if context.key is not self._key or context.key_group != self._key_group:
            self._turn()
        return self._at

    def _turn(self) -> None:
        context = self._context
        if context.key_group < 0:
            raise no_current_key(f"state {self.descriptor.name!r}")
        self._at = self.key_prefix(context.key_group, context.key)
        self.handed = {}
        self._key, self._key_group = context.key, context.key_group
        self.changed.pack_if_large()

    def _data(self, at: bytes) -> bytes | None:
        try:
            data: bytes | None = self._read(at)
        except Exception as error:
            raise self._database.failure(error) from error
        return data

    def _put(self, at: bytes, data: bytes) -> None:
        self._note(at)
        try:
            self._db[at] = data
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing else
            self._database.write_again(error, lambda: self._db.__setitem__(at, data))

    def _delete(self, at: bytes) -> None:
        self._note(at)
        self.handed.pop(at, None)
        try:
            del self._db[at]
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing else
            self._database.write_again(error, lambda: self._db.__delitem__(at))

    def _value(self, at: bytes, data: bytes) -> Any:
        """Return a mutable value for user code: the one copy of it while the key stays current."""
        value = self.handed.get(at, ABSENT)
        if value is ABSENT:
            value = self.handed[at] = self.loads(data)
        return value


class RocksDbValueState(RocksDbState, PlainValue):
    """One value per key. `read`, `get` and `update` are the hot path, written without calls to other methods."""

    def __init__(self, descriptor: StateDescriptor, number: int, context: KeyContext, database: Database) -> None:
        super().__init__(descriptor, number, context, database)
        self._sums = Sums(descriptor, self._check)

    def many(self) -> ManyInDatabase:
        """Return batch access."""
        return ManyInDatabase(self, self._sums)

    def read(self, place: bytes) -> Any:
        try:
            data = self._read(place)
        except Exception as error:
            raise self._database.failure(error) from error
        return None if data is None else self.loads(data)

    def get(self) -> Any:
        context = self._context
        if context.key is not self._key or context.key_group != self._key_group:
            self._turn()
        try:
            data = self._read(self._at)
        except Exception as error:
            raise self._database.failure(error) from error
        if data is None:
            return None
        return self._value(self._at, data) if self._mutable else self.loads(data)

    def update(self, value: Any) -> None:
        context = self._context
        if context.key is not self._key or context.key_group != self._key_group:
            self._turn()
        checked = self._check(value)
        data = self.dumps(checked)
        at = self._at
        self._note(at)
        try:
            self._db[at] = data
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing else
            self._database.write_again(error, lambda: self._db.__setitem__(at, data))
        if self._mutable:
            self.handed[at] = checked


class RocksDbMapState(RocksDbState):
    """Maps: each entry is a cell, and the entries of a key lie side by side."""

    def __init__(self, descriptor: StateDescriptor, number: int, context: KeyContext, database: Database) -> None:
        super().__init__(descriptor, number, context, database)
        who = Who(f"map key of state {descriptor.name!r}", context)
        self._check_key = RowCodec(descriptor.map_key_schema, who).check_key()

    def cells_of(self, entries: Iterable[tuple[bytes, bytes | None]]) -> Cells:
        entries = list(entries)
        cells = super().cells_of(entries)
        cells.map_keys = [self._map_key(at) for at, _ in entries]
        return cells

    def place(self, key_group: int, cell: Any, /) -> bytes:
        key, map_key = cell
        return self.key_prefix(key_group, key) + encode_key(map_key)

    def of_key(self, key_group: int, key: Row) -> Cells:
        return self.cells_of(self._database.scan(self.key_prefix(key_group, key)))

    def _places(self, cells: Cells) -> list[bytes]:
        cell = zip(cells.keys, cells.map_keys or (), strict=True)
        return list(map(self.place, cells.key_groups, cell))

    def get(self, map_key: Row) -> Any:
        at = self._turned() + encode_key(self._check_key(map_key))
        data = self._data(at)
        if data is None:
            return None
        return self._value(at, data) if self._mutable else self.loads(data)

    def contains(self, map_key: Row) -> bool:
        return self._data(self._turned() + encode_key(self._check_key(map_key))) is not None

    def put(self, map_key: Row, value: Any) -> None:
        at = self._turned() + encode_key(self._check_key(map_key))
        checked = self._check(value)
        self._put(at, self.dumps(checked))
        if self._mutable:
            self.handed[at] = checked

    def remove(self, map_key: Row) -> None:
        at = self._turned() + encode_key(self._check_key(map_key))
        if self._data(at) is not None:
            self._delete(at)

    def exists(self) -> bool:
        return next(self._scan(), None) is not None

    def items(self) -> Iterator[tuple[Row, Any]]:
        value = self._value if self._mutable else self._load_entry
        return iter([(self._map_key(at), value(at, data)) for at, data in self._scan()])

    def clear(self) -> None:
        for at, _ in list(self._scan()):
            self._delete(at)

    def _scan(self) -> Iterator[tuple[bytes, bytes]]:
        return self._database.scan(self._turned())

    def _load_entry(self, _at: bytes, data: bytes) -> Any:
        return self.loads(data)

    @staticmethod
    def _map_key(at: bytes) -> Row:
        return decode_key(at[KEY_PREFIX.size + KEY_PREFIX.unpack_from(at)[2] :])
