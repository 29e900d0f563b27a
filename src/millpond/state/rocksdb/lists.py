"""The handle of list states in RocksDB: an append writes the new elements, and at most one chunk.

A list is a stream of bytes, each element after its length, divided into *chunks*. The last chunk, the tail, lies under
the key's db key, after the number of the other chunks. Those lie under that db key followed by their number. An
append reads and writes the tail. Once the tail is full, it becomes a chunk, which does not change again. So a short
list is one cell, and an append to a long list costs no more.

For its delta, a version records where in the stream it began to add to each list, or that it replaced the list.

Invariant: the chunks under a key are numbered from 0 without a gap, and only the tail changes.
"""

# ruff: noqa: D102 - the protocols in backend/protocols.py say what the methods do
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from millpond.state.backend.cell_bytes import list_dumps, list_loads
from millpond.state.backend.protocols import ABSENT, Appended, Cells, cells_at
from millpond.state.rocksdb.states import Change, RocksDbState
from millpond.state.types.ordered_keys import key_of

CHUNK_BYTES = 2048
"""Size at which a tail becomes a chunk: each append reads and writes half of it on average."""

_NUMBER = struct.Struct(">I")
_PIECE_BYTES = 1 << 20
_Read = Callable[[bytes], bytes | None]


class RocksDbListState(RocksDbState):
    """A list in chunks.

    Attributes:
        added: for each list that the open version changed, the chunk and the byte in it at which the additions begin;
            None if the list was replaced.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.dumps, self.loads = list_dumps(self.dumps), list_loads(self.loads)
        self.added: dict[bytes, tuple[int, int] | None] = {}

    def end_version(self) -> Change:
        super().end_version()
        added, self.added = self.added, {}
        return Change(self, added)

    def forget_changes(self) -> None:
        super().forget_changes()
        self.added = {}

    def changes(self, changed: dict[bytes, tuple[int, int] | None], read: _Read) -> Iterator[Cells]:
        remaining = iter(sorted(changed))
        while piece := list(self._sized(remaining, changed, read)):
            yield self._cells(piece)

    def get(self) -> Iterator[Any]:
        at = self._turned()
        data = self._stream(at, self._data)
        if data is None:
            return iter(())
        return iter(tuple(self._value(at, data)) if self._mutable else self.loads(data))

    def put(self, values: Iterable[Any]) -> None:
        at = self._turned()
        checked = [self._check(value) for value in values]
        self._write_all(self._replacing(at, self.dumps(checked)))
        if self._mutable:
            self.handed[at] = checked

    def append(self, value: Any) -> None:
        self.extend((value,))

    def extend(self, values: Iterable[Any]) -> None:
        at = self._turned()
        checked = [self._check(value) for value in values]
        if not checked:
            return
        writes = self._adding(at, self._data(at), self.dumps(checked))
        tail = writes[at]
        if len(writes) == 1 and tail is not None:
            self._put(at, tail)
        else:
            self._write_all(writes)
        if at in self.handed:
            self.handed[at].extend(checked)

    def clear(self) -> None:
        at = self._turned()
        self.handed.pop(at, None)
        gone = self._replacing(at, None)
        if gone:
            self._write_all(gone)

    def read(self, place: bytes) -> Any:
        data = self._stream(place, self._data)
        return None if data is None else self.loads(data)

    def read_all(self, places: list[bytes]) -> list[Any]:
        return list(map(self.read, places))

    def put_all(self, places: list[bytes], values: list[Any]) -> None:
        writes: dict[bytes, bytes | None] = {}
        for at, value in zip(places, values, strict=True):
            written = self._replacing(at, None if value is None else self.dumps(value))
            if not written:
                # Also the deletion of a list that is not here is a change: a cache committed the list, and kept it.
                self.added[at], written = None, {at: None}
            writes |= written
        self.handed = {}
        self._write_all(writes)

    def entries_of(self, cells: Cells) -> tuple[list[bytes], list[bytes | None]]:
        writes: dict[bytes, bytes | None] = {}
        for at, value in zip(self._places(cells), cells.values, strict=True):
            if type(value) is Appended:
                writes |= self._adding(at, self._data(at), self.dumps(value))
            else:
                writes |= self._replacing(at, None if value is ABSENT else self.dumps(value))
        # These are changes of a restore, which nobody reads.
        self.added = {}
        return list(writes), list(writes.values())

    def cells_of(self, entries: Iterable[tuple[bytes, bytes | None]]) -> Cells:
        """Return cells from a scan, in which a list's tail comes first and then its chunks."""
        found: list[tuple[bytes, Any]] = []
        cell, tail, chunks = b"", b"", [b""]
        for at, data in entries:
            if cell and at.startswith(cell) and len(at) == len(cell) + _NUMBER.size:
                chunks.append(data or b"")
                continue
            if cell:
                found.append((cell, self.loads(b"".join((*chunks, tail)))))
            cell, tail, chunks = at, (data or b"")[_NUMBER.size :], []
        if cell:
            found.append((cell, self.loads(b"".join((*chunks, tail)))))
        return self._cells(found)

    def _cells(self, found: list[tuple[bytes, Any]]) -> Cells:
        return cells_at([key_of(at) for at, _ in found], [value for _, value in found], is_map=False)

    def _sized(
        self, places: Iterator[bytes], changed: dict[bytes, tuple[int, int] | None], read: _Read
    ) -> Iterator[tuple[bytes, Any]]:
        """Yield changed lists until they make up a piece."""
        size = 0
        for at in places:
            data = self._stream(at, read, changed[at] or (0, 0))
            if data is None:
                yield at, ABSENT
            else:
                values = self.loads(data)
                yield at, values if changed[at] is None else Appended(values)
                size += len(data)
            if size >= _PIECE_BYTES:
                return

    def _stream(self, at: bytes, read: _Read, start: tuple[int, int] = (0, 0)) -> bytes | None:
        """Return the bytes of a list from a byte of a chunk on; None if there is no list."""
        tail = read(at)
        if tail is None:
            return None
        first, offset = start
        chunks = [read(at + _NUMBER.pack(number)) or b"" for number in range(first, _chunks(tail))]
        return b"".join((*chunks, tail[_NUMBER.size :]))[offset:]

    def _adding(self, at: bytes, tail: bytes | None, data: bytes) -> dict[bytes, bytes | None]:
        """Return the writes that add these bytes to the end of a list with this tail."""
        if tail is None:
            return self._replacing(at, data)
        chunks, grown = _chunks(tail), tail[_NUMBER.size :] + data
        self.added.setdefault(at, (chunks, len(tail) - _NUMBER.size))
        if len(grown) < CHUNK_BYTES:
            return {at: tail + data}
        return {at + _NUMBER.pack(chunks): grown, at: _NUMBER.pack(chunks + 1)}

    def _replacing(self, at: bytes, data: bytes | None) -> dict[bytes, bytes | None]:
        """Return the writes that make these bytes, or nothing, the whole list."""
        tail = self._data(at)
        if tail is None and data is None:
            return {}
        self.added[at] = None
        gone: dict[bytes, bytes | None] = {at + _NUMBER.pack(number): None for number in range(_chunks(tail))}
        if data is None:
            return gone | {at: None}
        if len(data) < CHUNK_BYTES:
            return gone | {at: _NUMBER.pack(0) + data}
        return gone | {at + _NUMBER.pack(0): data, at: _NUMBER.pack(1)}

    def _write_all(self, writes: dict[bytes, bytes | None]) -> None:
        self.changed.update(writes)
        self._database.write(list(writes), list(writes.values()))


def _chunks(tail: bytes | None) -> int:
    """Return how many chunks come before a tail."""
    return 0 if tail is None else int(_NUMBER.unpack_from(tail)[0])
