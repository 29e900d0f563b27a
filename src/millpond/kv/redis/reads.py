"""Encodes many reads for one Redis server as bytes, and decodes the rows in their replies.

Place on the data path: under every fetch from Redis, which reads a few ranges of each wanted key.

Idea: the reads of one fetch and of the next ones ask for the same ranges of the same datasets, and differ only in the
key. So a command is encoded once per range, in the protocol of Redis, and each read inserts its key.

Invariant: the bytes equal those that `operations` makes for the same get. A test compares them.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from millpond.errors import CorruptionError
from millpond.kv.redis.layout import EXPIRING_HEADER_BYTES, HEADER_BYTES, decode_row, misplaced, tag_of
from millpond.kv.store import MAX_TIME_MS, Get, Rows, TimedValue, check_get

_MOST_RANGES = 1_000
_head = struct.Struct(">Bq").unpack_from

_Range = tuple[Rows, bytes, int, bytes, bytes]
"""The guessed kind of the dataset; the command up to the length of the name; that length without the hash tag; the
bytes from there to the tag; the bytes after the tag."""

_Ranges = dict[tuple[str, int | None, int | None], _Range]


class PackedReads:
    r"""Encodes reads as bytes; may be shared by threads.

    Args:
        prefix: the prefix of the names of all keys.
        rows_of: returns the guessed kind of a get's dataset.

    >>> reads = PackedReads(b"millpond", lambda get: "one")
    >>> reads.pack([Get("batch", b"EWR")])
    (['one'], [b'*2\r\n$3\r\nGET\r\n$20\r\nmillpond:{EWR}:batch\r\n'])
    """

    __slots__ = ("_prefix", "_ranges", "_rows_of")

    def __init__(self, prefix: bytes, rows_of: Callable[[Get], Rows]) -> None:
        self._prefix = prefix
        self._rows_of = rows_of
        self._ranges: _Ranges = {}

    def pack(self, gets: Sequence[Get]) -> tuple[list[Rows], list[bytes]]:
        """Return the guessed kind of each get's dataset, and the encoded commands that read the gets."""
        ranges = self._ranges
        guesses: list[Rows] = []
        commands: list[bytes] = []
        for get in gets:
            key = get.key
            found = ranges.get((get.dataset, get.start_ms, get.end_ms))
            if found is None:
                found = self._range(get, ranges)
            rows, command, name_bytes, before, after = found
            tag = tag_of(key) if not key or b"}" in key or b"%" in key else key
            guesses.append(rows)
            commands.append(b"%b%d%b%b%b" % (command, name_bytes + len(tag), before, tag, after))
        return guesses, commands

    def forget(self) -> None:
        """Drop all encoded ranges, because a dataset may have changed its kind."""
        # This makes a new dictionary. Another thread may still write a range of the former kind into the old one.
        self._ranges = {}

    def _range(self, get: Get, ranges: _Ranges) -> _Range:
        check_get(get)
        if len(ranges) >= _MOST_RANGES:
            self.forget()
        rows, dataset = self._rows_of(get), get.dataset.encode()
        command, bounds = b"*2\r\n$3\r\nGET\r\n$", b""
        if rows == "many":
            first = b"-inf" if get.start_ms is None else b"%d" % get.start_ms
            end = b"+inf" if get.end_ms is None else b"(%d" % get.end_ms
            command = b"*4\r\n$13\r\nZRANGEBYSCORE\r\n$"
            bounds = b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(first), first, len(end), end)
        before, after = b"%b:{" % self._prefix, b"}:%b" % dataset
        made = (rows, command, len(before) + len(after), b"\r\n" + before, b"%b\r\n%b" % (after, bounds))
        ranges[get.dataset, get.start_ms, get.end_ms] = made
        return made


def rows_of_all(gets: Sequence[Get], guesses: Sequence[Rows], replies: Sequence[Any]) -> list[list[TimedValue]]:
    """Return the rows in the replies to some gets."""
    return [
        _rows_of_set(reply, get) if rows == "many" else _rows_of_string(reply, get)
        for get, rows, reply in zip(gets, guesses, replies, strict=True)
    ]


def rows_of(reply: Any, get: Get, rows: Rows) -> list[TimedValue]:
    """Return the rows in the reply to one get."""
    return _rows_of_string(reply, get) if rows == "one" else _rows_of_set(reply, get)


def _rows_of_string(reply: Any, get: Get) -> list[TimedValue]:
    if reply is None:
        return []
    _check_type(reply, bytes, get)
    row = decode_row(reply, get)
    later = get.start_ms is None or get.start_ms <= row.time_ms
    return [row] if later and (get.end_ms is None or row.time_ms < get.end_ms) else []


def _rows_of_set(reply: Any, get: Get) -> list[TimedValue]:
    if type(reply) is not list:
        _check_type(reply, list, get)
    rows = []
    last_ms = -MAX_TIME_MS - 1 if get.start_ms is None else get.start_ms - 1
    end_ms = MAX_TIME_MS + 1 if get.end_ms is None else get.end_ms
    for raw in reply:
        try:
            version, time_ms = _head(raw)
        except struct.error:
            version, time_ms = 0, 0
        if version == 1:
            row = TimedValue(time_ms, raw[HEADER_BYTES:])
        elif version == 2 and len(raw) >= EXPIRING_HEADER_BYTES:  # noqa: PLR2004 - the version byte
            row = TimedValue(time_ms, raw[EXPIRING_HEADER_BYTES:])
        else:
            row = decode_row(raw, get)
        if not last_ms < time_ms < end_ms:
            raise misplaced(row, get)
        last_ms = time_ms
        rows.append(row)
    return rows


def _check_type(reply: Any, expected: type, get: Get) -> None:
    if not isinstance(reply, expected):
        raise CorruptionError(
            f"dataset {get.dataset!r}, key {get.key[:24]!r}: what Redis holds is neither a string nor a sorted set "
            f"({reply}). Something else writes under this prefix: give the store another one."
        )
