"""The timers of keyed state in RocksDB: a map state whose entries also lie in the order of time.

So the due timers are a range of the database, and memory holds no timer. A timer is two rows:

    cell     state (2 bytes) | key group (2) | length of the key (4) | key | time, as a map key -> number (8) | value
    order    state + 0x8000 (2 bytes) | time (8) | number (8)                                -> key group (2) | key

Numbers ascend, so the timers of one time lie in the order in which they were set. Time is written as its distance from
the first moment, so that its bytes ascend.

Both rows are written in one batch. A version's changes are recorded as those of the cells alone: a cell's row before
and its row now tell which rows of the order differ. The delta and a snapshot's cells are made of the cells.

Timers that fired leave deleted rows before the first timer. A search for it would step over them each time until
RocksDB compacts them. So the state keeps a place before which there is no timer.

Invariant: each cell with a time has one row of the order, and there is no other. None lies before `_first`.
"""

# ruff: noqa: D102 - the protocols in backend/protocols.py say what the methods do
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.protocols import ABSENT, Cells
from millpond.state.backend.timer_queue import DueTimer
from millpond.state.rocksdb.database import Database
from millpond.state.rocksdb.states import RocksDbMapState
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.ordered_keys import KEY_PREFIX, STATE_PREFIX, after, decode_key, encode_key
from millpond.state.types.rows import Row
from millpond.state.types.times import FIRST_MS, LAST_MS

_ORDER_OF = 0x8000
"""Added to a state's number to give that of its order. There are far fewer states."""

_ORDER = struct.Struct(">HQQ")
_NUMBER = struct.Struct(">Q")
_GROUP = struct.Struct(">H")


class RocksDbTimerState(RocksDbMapState):
    """The map state of timers. It adds `rows_of` and the reads below to a map state."""

    def __init__(self, descriptor: StateDescriptor, number: int, context: KeyContext, database: Database) -> None:
        super().__init__(descriptor, number, context, database)
        loads = self.loads
        self.loads = lambda data: loads(data[_NUMBER.size :])
        self._order = STATE_PREFIX.pack(_ORDER_OF | number)
        self._order_number = _ORDER_OF | number
        self._first = self._order
        self._next = 0
        # The cell that `contains` did not find, kept because a timer is looked up before it is set.
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
        # The same as `_write`, without its generality: records set timers.
        number, self._missing = _NUMBER.pack(self._next), None
        place = _ORDER.pack(self._order_number, expiry_ms - FIRST_MS, self._next)
        stored = number + self.dumps(self._check(value))
        self._next += 1
        self._first = min(self._first, place)
        self._note(at)
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
        """Return the earliest timer, or None."""
        for at, data in self._database.between(self._first, after(self._order)):
            self._first = at
            return _timer(at, data)
        return None

    def up_to(self, limit_ms: int) -> Iterator[DueTimer]:
        """Yield the timers at or before the limit as they are now, read one by one."""
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
        """Return the rows that change with these cells, and their new bytes. A timer set again keeps its number.

        If a cell occurs twice, its last value counts, as in any map state.
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
            rows[at] = number + self.dumps(value)
            if data is None:
                _, _, length = KEY_PREFIX.unpack_from(at)
                for place in self._place_in_order(at, number):
                    rows[place] = _of_key(at[: KEY_PREFIX.size + length])
                    self._first = min(self._first, place)
        return list(rows), list(rows.values())

    def _place_in_order(self, at: bytes, data: bytes) -> tuple[bytes, ...]:
        """Return the order's row for this cell's timer: none if the timer has no time, as in checkpoints of 0.1."""
        (expiry_ms,) = self._map_key(at)
        if expiry_ms is None:
            return ()
        return (_ORDER.pack(self._order_number, expiry_ms - FIRST_MS, _NUMBER.unpack_from(data)[0]),)


class TimersInRocksDb:
    """`TimersByTime` for a state that keeps the order of its timers itself. Memory holds none."""

    __slots__ = ("_state",)

    def __init__(self, state: RocksDbTimerState) -> None:
        self._state = state

    def __len__(self) -> int:
        """Return the number of entries in memory: 0."""
        return 0

    def add(self, timer: DueTimer) -> None:
        """Do nothing: the state keeps its order itself."""

    def remove(self, timer: DueTimer) -> None:
        """Do nothing: the state keeps its order itself."""

    def first(self) -> DueTimer | None:
        return self._state.first()

    def up_to(self, limit_ms: int) -> Iterator[DueTimer]:
        return self._state.up_to(limit_ms)

    def close(self) -> None:
        """Do nothing: nothing is held."""


def _of_key(prefix: bytes) -> bytes:
    """Return the value of a timer's row in the order, key group and key, from the beginning of its key's cells."""
    return prefix[STATE_PREFIX.size : STATE_PREFIX.size + _GROUP.size] + prefix[KEY_PREFIX.size :]


def _timer(at: bytes, data: bytes) -> DueTimer:
    _, since_first_ms, _ = _ORDER.unpack(at)
    return DueTimer(since_first_ms + FIRST_MS, _GROUP.unpack_from(data)[0], decode_key(data[_GROUP.size :]))
