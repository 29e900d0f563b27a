"""The timers of keyed state in RocksDB: a map state whose entries also lie in the order of time.

So what is due is a range of the database, and memory holds no timer. A timer is two rows:

    cell     state (2 bytes) | key group (2) | length of the key (4) | key | time, as a map key -> number (8) | value
    order    state + 0x8000 (2 bytes) | time (8) | number (8)                                -> key group (2) | key

Numbers are given one after the other, so the timers of one time lie in the order in which they were set. Time is
written as its distance from the first moment, which makes its bytes ascend.

Both rows are written in one batch, and a version's changes are remembered as those of the cells alone: a cell's row
before and its row now say which rows of the order differ. The delta and a snapshot's cells are made of the cells.

What fired leaves deleted rows before the first timer, which a search for it would pass over each time until RocksDB
has compacted them. So the state remembers a place before which there is no timer.

Invariant: there is one row of the order for each cell with a time, and none else; none lies before `_first`.
"""

# ruff: noqa: D102 - the protocols in backend.py say what the methods of handles do
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from millpond.state.backend.protocols import ABSENT, Cells, KeyContext
from millpond.state.backend.timer_queue import DueTimer
from millpond.state.rocksdb.database import Database
from millpond.state.rocksdb.states import RocksDbMapState
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.ordered_keys import KEY_PREFIX, STATE_PREFIX, after, decode_key, encode_key
from millpond.state.types.rows import Row
from millpond.state.types.times import FIRST_MS, LAST_MS

_ORDER_OF = 0x8000
"""Added to the number of a state: there are far fewer states."""

_ORDER = struct.Struct(">HQQ")
_NUMBER = struct.Struct(">Q")
_GROUP = struct.Struct(">H")


class RocksDbTimerState(RocksDbMapState):
    """The map state of timers. `rows_of` and the reads below are what it adds to one."""

    def __init__(self, descriptor: StateDescriptor, number: int, context: KeyContext, database: Database) -> None:
        super().__init__(descriptor, number, context, database)
        loads = self._loads
        self._loads = lambda data: loads(data[_NUMBER.size :])
        self._order = STATE_PREFIX.pack(_ORDER_OF | number)
        self._order_number = _ORDER_OF | number
        self._first = self._order
        self._next = 0
        # The cell that `contains` did not find: a timer is looked for before it is set.
        self._missing: bytes | None = None

    def use(self, handle: Any) -> None:
        super().use(handle)
        self._missing = None

    def contains(self, map_key: Row) -> bool:
        at = self._turned() + encode_key(self._check_key(map_key))
        if self._data(at) is not None:
            return True
        self._missing = at
        return False

    def put(self, map_key: Row, value: Any) -> None:
        key, (expiry_ms,) = self._turned(), self._check_key(map_key)
        at = key + encode_key((expiry_ms,))
        before = None if at == self._missing else self._data(at)
        if before is not None or expiry_ms is None:
            self._write([at], [self._check(value)], [before])
            return
        # The same, written out for what records do.
        number, self._missing = _NUMBER.pack(self._next), None
        place = _ORDER.pack(self._order_number, expiry_ms - FIRST_MS, self._next)
        stored = number + self._dumps(self._check(value))
        self._next += 1
        self._first = min(self._first, place)
        self.changed.add(at)
        self._database.write((at, place), (stored, _of_key(key)))

    def remove(self, map_key: Row) -> None:
        at = self._turned() + encode_key(self._check_key(map_key))
        before = self._data(at)
        if before is not None:
            self._write([at], [None], [before])

    def clear(self) -> None:
        found = list(self._scan())
        self._write([at for at, _ in found], [None] * len(found), [data for _, data in found])

    def put_all(self, places: list[bytes], values: list[Any]) -> None:
        self._write(places, values, self.data_of(places))

    def entries_of(self, cells: Cells) -> tuple[list[bytes], list[bytes | None]]:
        places = self._places(cells)
        return self._rows(places, [None if value is ABSENT else value for value in cells.values], self.data_of(places))

    def rows_of(self, changed: Iterable[bytes], version: Any) -> Iterator[bytes]:
        for at in changed:
            yield at
            for data in (self._data(at), self._database.read_from(version, at)):
                if data is not None:
                    yield from self._place_in_order(at, data)

    def forget_changes(self) -> None:
        super().forget_changes()
        self._first = self._order
        self._missing = None

    def first(self) -> DueTimer | None:
        """The earliest timer, or None."""
        for at, data in self._database.between(self._first, after(self._order)):
            self._first = at
            return _timer(at, data)
        return None

    def up_to(self, limit_ms: int) -> Iterator[DueTimer]:
        """The timers at or before the limit as they are now, read one by one."""
        if limit_ms < FIRST_MS:
            return iter(())
        end = after(_ORDER.pack(self._order_number, min(limit_ms, LAST_MS) - FIRST_MS, 0)[: -_NUMBER.size])
        found = self._database.between(self._first, end)
        return (_timer(at, data) for at, data in found)

    def _write(self, places: Sequence[bytes], values: Sequence[Any], before: Sequence[bytes | None]) -> None:
        self.changed.update(places)
        self._database.write(*self._rows(places, values, before))

    def _rows(
        self, places: Sequence[bytes], values: Sequence[Any], before: Sequence[bytes | None]
    ) -> tuple[list[bytes], list[bytes | None]]:
        """The rows that change with these cells, and what shall be there. A timer that is set again keeps its number.

        A cell that is among them twice is what it is at last, as in any map state.
        """
        self._missing = None
        cells = dict(zip(places, zip(values, before, strict=True), strict=True))
        rows: dict[bytes, bytes | None] = {}
        for at, (value, data) in cells.items():
            if value is None:
                rows[at] = None
                if data is not None:
                    rows.update(dict.fromkeys(self._place_in_order(at, data)))
                continue
            number = _NUMBER.pack(self._next) if data is None else data[: _NUMBER.size]
            self._next += data is None
            rows[at] = number + self._dumps(value)
            if data is None:
                _, _, length = KEY_PREFIX.unpack_from(at)
                for place in self._place_in_order(at, number):
                    rows[place] = _of_key(at[: KEY_PREFIX.size + length])
                    self._first = min(self._first, place)
        return list(rows), list(rows.values())

    def _place_in_order(self, at: bytes, data: bytes) -> tuple[bytes, ...]:
        """Where the order has the timer of this cell. Checkpoints of 0.1 may hold one without a time: it is in none."""
        (expiry_ms,) = self._map_key(at)
        if expiry_ms is None:
            return ()
        return (_ORDER.pack(self._order_number, expiry_ms - FIRST_MS, _NUMBER.unpack_from(data)[0]),)


class TimersInRocksDb:
    """`TimersByTime` of a state that keeps the order of its timers itself: memory holds none."""

    __slots__ = ("_state",)

    def __init__(self, state: RocksDbTimerState) -> None:
        self._state = state

    def __len__(self) -> int:
        """How many entries lie in memory: none."""
        return 0

    def add(self, timer: DueTimer) -> None:
        """The state knows it already."""

    def remove(self, timer: DueTimer) -> None:
        """The state knows it already."""

    def first(self) -> DueTimer | None:
        """The earliest timer, or None."""
        return self._state.first()

    def up_to(self, limit_ms: int) -> Iterator[DueTimer]:
        """Every timer at or before the limit that is set when this is called, read one by one."""
        return self._state.up_to(limit_ms)

    def close(self) -> None:
        """Nothing is held."""


def _of_key(prefix: bytes) -> bytes:
    """What the order says of a timer, from the beginning of its key's cells: key group and key."""
    return prefix[STATE_PREFIX.size : STATE_PREFIX.size + _GROUP.size] + prefix[KEY_PREFIX.size :]


def _timer(at: bytes, data: bytes) -> DueTimer:
    _, since_first_ms, _ = _ORDER.unpack(at)
    return DueTimer(since_first_ms + FIRST_MS, _GROUP.unpack_from(data)[0], decode_key(data[_GROUP.size :]))
