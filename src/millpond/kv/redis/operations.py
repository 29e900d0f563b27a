"""The operations of a Redis store as commands and replies, without any IO.

Place on the data path: between the stores (`store`, `async_store`), which send and wait, and the bytes
(`layout`).

Idea: an operation is a generator. It yields a list of commands, is sent the list of their replies, and returns its
result. So the same code serves the blocking and the async store. An error reply is sent as a value. The commands of
one list may run in any order and on several nodes. A list is sent only after the one before it was answered.

Invariant: a key is in the dataset's register before its first row is written. So `drop` finds every row without a
scan of the server. Every command is idempotent, because it may be sent again.

A read does not know whether a key is a string or a sorted set. It assumes what the dataset was last known to be. A
wrong guess gives an error reply, never an absence, and the read is sent again.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import sha1
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from millpond.errors import CorruptionError, UnavailableError
from millpond.kv.redis.layout import (
    REGISTERS,
    WRITE_ROWS,
    encode_expiring_row,
    encode_row,
    register_of,
    slot_of,
    tag_of,
)
from millpond.kv.redis.reads import PackedReads, rows_of, rows_of_all
from millpond.kv.store import (
    Get,
    PartlyReadError,
    Put,
    Rows,
    TimedValue,
    check_declaration,
    check_get,
    check_put,
    check_same_rows,
    encode_dataset,
    expires_ms,
)

_ROWS_A_PIPELINE = 5_000
_KEYS_A_SLICE = 100
"""Keys of each register that one step of a drop removes."""

_HOUR_MS = 3_600_000
"""How much longer a key stays in its register than its rows, because writers' clocks may differ by that much."""

_SCRIPT_SHA = sha1(WRITE_ROWS, usedforsecurity=False).hexdigest().encode()
_NEVER = b"+inf"

_T = TypeVar("_T")


class Command(NamedTuple):
    """One command, for the node that has the slot."""

    args: tuple[bytes | int, ...]
    slot: int
    is_read: bool = False


_ByKey: TypeAlias = dict[bytes, dict[int, Put]]
"""For each key, the rows to write by their times."""

Steps: TypeAlias = Generator[list[Command], list[Any], _T]


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The catalogue's entry of a dataset; a format other than 1 is rejected."""

    format: int
    rows: Rows
    ttl_ms: int | None = None
    dropping: bool = False


class _Known(NamedTuple):
    """An entry, and its bytes. While the bytes in the catalogue are the same, the entry is current."""

    raw: bytes
    entry: _Entry


_UNDECLARED = msgspec.json.encode(_Entry(1, "many"))


class RedisOperations:
    """The operations of one store under one prefix; may be shared by threads.

    `packed_reads` encodes the commands of `reads` as bytes, for a store on one server.
    """

    def __init__(self, prefix: str, *, clock: Callable[[], int], randomness: random.Random) -> None:
        self._prefix = prefix.encode()
        self._clock = clock
        self._random = randomness
        self._catalogue = self._prefix + b":datasets"
        self._catalogue_slot = slot_of(self._catalogue)
        self._written: dict[str, _Known] = {}
        self._rows_read: dict[str, Rows] = {}
        self.packed_reads = PackedReads(self._prefix, self._rows_guessed)
        self._walked: tuple[str, int, list[bytes]] | None = None

    def create(self, dataset: str, rows: Rows, ttl_ms: int | None) -> Steps[None]:
        """Declare a dataset."""
        check_declaration(dataset, rows, ttl_ms)
        declared = msgspec.json.encode(_Entry(1, rows, ttl_ms))
        known = yield from self._entered(dataset, declared)
        check_same_rows(dataset, known.entry.rows, rows)
        if known.raw != declared:
            yield [self._in_catalogue(b"HSET", encode_dataset(dataset), declared)]
            self._written.pop(dataset, None)

    def put_many(self, dataset: str, puts: Iterable[Put]) -> Steps[None]:
        """Write rows, with one command per key."""
        encode_dataset(dataset)
        by_key: _ByKey = {}
        for put in puts:
            check_put(dataset, put)
            by_key.setdefault(put.key, {})
            by_key[put.key].pop(put.time_ms, None)
            by_key[put.key][put.time_ms] = put
        if not by_key:
            yield from self._write(dataset, {})
        keys = iter(by_key.items())
        while piece := dict(islice(keys, _ROWS_A_PIPELINE)):
            yield from self._write(dataset, piece)

    def bulk_put(self, dataset: str, puts: Iterable[Put]) -> Steps[None]:
        """Write many rows, 5,000 at a time."""
        yield from self.put_many(dataset, [])
        rows = iter(puts)
        while piece := list(islice(rows, _ROWS_A_PIPELINE)):
            yield from self.put_many(dataset, piece)

    def get_many(self, gets: Sequence[Get]) -> Steps[list[list[TimedValue]]]:
        """Return the rows of each get.

        Raises:
            PartlyReadError: some servers did not answer.
        """
        guesses, commands = self.reads(gets)
        replies = yield commands
        mistaken = [place for place, reply in enumerate(replies) if _is_wrong_type(reply)]
        if mistaken:
            for place in mistaken:
                guesses[place] = "many" if guesses[place] == "one" else "one"
                self._rows_read[gets[place].dataset] = guesses[place]
            self.packed_reads.forget()
            again = yield [self._read(gets[place], guesses[place]) for place in mistaken]
            for place, reply in zip(mistaken, again, strict=True):
                replies[place] = reply
        if any(type(reply) is UnavailableError for reply in replies):
            raise PartlyReadError(
                [
                    reply if isinstance(reply, UnavailableError) else rows_of(reply, get, rows)
                    for get, rows, reply in zip(gets, guesses, replies, strict=True)
                ]
            )
        return rows_of_all(gets, guesses, replies)

    def reads(self, gets: Sequence[Get]) -> tuple[list[Rows], list[Command]]:
        """Return the guessed kind of each get's dataset, and the commands that read the gets."""
        guesses = [self._rows_guessed(get) for get in gets]
        return guesses, [self._read(get, rows) for get, rows in zip(gets, guesses, strict=True)]

    def next_keys(self, dataset: str, after: bytes | None, most: int) -> Steps[list[tuple[bytes, list[TimedValue]]]]:
        """Return up to `most` keys with their rows, register by register, and within a register sorted by bytes."""
        register = 0 if after is None else register_of(after)
        found: list[tuple[bytes, list[TimedValue]]] = []
        while register < REGISTERS and len(found) < most:
            keys = yield from self._keys_after(dataset, register, after)
            while keys and len(found) < most:
                page, keys = keys[: most - len(found)], keys[most - len(found) :]
                rows = yield from self.get_many([Get(dataset, key) for key in page])
                found += [(key, of_key) for key, of_key in zip(page, rows, strict=True) if of_key]
            if not keys:
                register, after = register + 1, None
        return found

    def _keys_after(self, dataset: str, register: int, after: bytes | None) -> Steps[list[bytes]]:
        """Return the sorted keys of a register after a key. The register is read once and kept while it is walked."""
        walked = self._walked
        if after is None or walked is None or walked[:2] != (dataset, register):
            (members,) = yield [self._of_register(b"ZRANGE", dataset, register, 0, -1)]
            walked = self._walked = (dataset, register, sorted(members))
        return walked[2] if after is None else walked[2][bisect_right(walked[2], after) :]

    def delete_keys(self, dataset: str, keys: Iterable[bytes]) -> Steps[None]:
        """Remove the rows of some keys, then the keys from their registers."""
        rest = iter(keys)
        while piece := list(islice(rest, _ROWS_A_PIPELINE)):
            yield [self._unlink(dataset, key) for key in piece]
            yield [self._unregister(dataset, register, of) for register, of in _by_register(piece).items()]

    def drop(self, dataset: str) -> Steps[None]:
        """Mark a dataset as dropping, remove its rows, and finish earlier drops that did not end."""
        name = encode_dataset(dataset)
        self._written.pop(dataset, None)
        self._rows_read.pop(dataset, None)
        self.packed_reads.forget()
        (raw,) = yield [self._in_catalogue(b"HGET", name)]
        if raw is not None:
            entry = _decode_entry(dataset, raw)
            marked = msgspec.json.encode(msgspec.structs.replace(entry, dropping=True))
            yield [self._in_catalogue(b"HSET", name, marked)]
        for other, entry in (yield from self._entries()).items():
            if entry.dropping:
                yield from self._finish_drop(other)

    def datasets(self) -> Steps[list[str]]:
        """Return the names of all datasets, sorted."""
        return sorted(name for name, entry in (yield from self._entries()).items() if not entry.dropping)

    def _entries(self) -> Steps[dict[str, _Entry]]:
        (found,) = yield [self._in_catalogue(b"HGETALL")]
        names = [name.decode() for name in found[::2]]
        return {name: _decode_entry(name, raw) for name, raw in zip(names, found[1::2], strict=True)}

    def _entered(self, dataset: str, declared: bytes = _UNDECLARED) -> Steps[_Known]:
        """Return the catalogue's entry of a dataset; enter `declared` if the dataset is new."""
        name = encode_dataset(dataset)
        while True:
            (raw,) = yield [self._in_catalogue(b"HGET", name)]
            if raw is None:
                yield [self._in_catalogue(b"HSETNX", name, declared)]
                continue
            entry = _decode_entry(dataset, raw)
            if not entry.dropping:
                self._written[dataset] = _Known(raw, entry)
                return self._written[dataset]
            yield from self._finish_drop(dataset)

    def _write(self, dataset: str, by_key: _ByKey) -> Steps[None]:
        """Register keys, then write their rows; do it again if the dataset was dropped or declared meanwhile."""
        look = self._in_catalogue(b"HGET", encode_dataset(dataset))
        known = self._written.get(dataset) or (yield from self._entered(dataset))
        while True:
            raw, *_ = yield [look, *self._registrations(dataset, known.entry, by_key)]
            if raw == known.raw:
                *_, raw = yield [*self._writes(dataset, known.entry, by_key), look]
            if raw == known.raw:
                return
            known = yield from self._entered(dataset)

    def _registrations(self, dataset: str, entry: _Entry, by_key: _ByKey) -> Iterator[Command]:
        now_ms, ttl_ms = self._clock(), entry.ttl_ms
        for register, of_register in _by_register(by_key).items():
            pairs: list[bytes | int]
            if ttl_ms is None:
                pairs = [part for key in of_register for part in (_NEVER, key)]
            else:
                yield self._of_register(b"ZREMRANGEBYSCORE", dataset, register, b"-inf", now_ms)
                pairs = [
                    part
                    for key in of_register
                    for part in (_last_expiry_ms(by_key[key].values(), now_ms, ttl_ms) + _HOUR_MS, key)
                ]
            yield self._of_register(b"ZADD", dataset, register, b"GT", *pairs)

    def _writes(self, dataset: str, entry: _Entry, by_key: _ByKey) -> Iterator[Command]:
        now_ms, ttl_ms = self._clock(), entry.ttl_ms
        for key, rows in by_key.items():
            tag = tag_of(key)
            name, slot = self._name(tag, dataset), slot_of(tag)
            if entry.rows == "one":
                put = next(reversed(rows.values()))
                expiry = () if ttl_ms is None else (b"PX", expires_ms(put.keep_until_ms, now_ms, ttl_ms) - now_ms)
                yield Command((b"SET", name, encode_row(put.time_ms, put.value), *expiry), slot)
                continue
            parts: list[bytes | int] = []
            for time_ms, put in rows.items():
                row = encode_row(time_ms, put.value)
                if ttl_ms is not None:
                    row = encode_expiring_row(time_ms, put.value, expires_ms(put.keep_until_ms, now_ms, ttl_ms))
                parts += (time_ms, row)
            key_ttl_ms = 0 if ttl_ms is None else _last_expiry_ms(rows.values(), now_ms, ttl_ms) - now_ms
            chance = self._random.randrange(1 << 30)
            yield Command((b"EVALSHA", _SCRIPT_SHA, 1, name, key_ttl_ms, now_ms, chance, *parts), slot)

    def _rows_guessed(self, get: Get) -> Rows:
        """Return the last known kind of a dataset. If it was never read, guess from the range of the get.

        A range of one time is how batch rows are read.
        """
        likely: Rows = "one" if get.start_ms is not None and get.end_ms == get.start_ms + 1 else "many"
        return self._rows_read.get(get.dataset, likely)

    def _read(self, get: Get, rows: Rows) -> Command:
        start_ms, end_ms = get.start_ms, get.end_ms
        check_get(get)
        tag = tag_of(get.key)
        name = self._name(tag, get.dataset)
        if rows == "one":
            return Command((b"GET", name), slot_of(tag), is_read=True)
        first = b"-inf" if start_ms is None else start_ms
        end = b"+inf" if end_ms is None else b"(%d" % end_ms
        return Command((b"ZRANGEBYSCORE", name, first, end), slot_of(tag), is_read=True)

    def _finish_drop(self, dataset: str) -> Steps[None]:
        """Remove the rows of a dataset marked as dropping, in slices, then its entry."""
        left = list(range(REGISTERS))
        while left:
            members = yield [self._of_register(b"ZRANGE", dataset, register, 0, _KEYS_A_SLICE - 1) for register in left]
            slices = {register: keys for register, keys in zip(left, members, strict=True) if keys}
            yield [self._unlink(dataset, key) for keys in slices.values() for key in keys]
            yield [self._unregister(dataset, register, keys) for register, keys in slices.items()]
            left = list(slices)
        yield [self._in_catalogue(b"HDEL", encode_dataset(dataset))]

    def _name(self, tag: bytes, dataset: str) -> bytes:
        return b"%b:{%b}:%b" % (self._prefix, tag, dataset.encode())

    def _unlink(self, dataset: str, key: bytes) -> Command:
        tag = tag_of(key)
        return Command((b"UNLINK", self._name(tag, dataset)), slot_of(tag))

    def _unregister(self, dataset: str, register: int, keys: Iterable[bytes]) -> Command:
        return self._of_register(b"ZREM", dataset, register, *keys)

    def _of_register(self, command: bytes, dataset: str, register: int, *args: bytes | int) -> Command:
        tag = b"%03d" % register
        return Command((command, b"%b:keys:{%b}:%b" % (self._prefix, tag, dataset.encode()), *args), slot_of(tag))

    def _in_catalogue(self, command: bytes, *args: bytes) -> Command:
        return Command((command, self._catalogue, *args), self._catalogue_slot)


def loading(command: Command) -> Command:
    """Return the same command with the script's text, for a node that does not know the script."""
    _, _, *rest = command.args
    return command._replace(args=(b"EVAL", WRITE_ROWS, *rest))


def _is_wrong_type(reply: object) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith("WRONGTYPE")


def _last_expiry_ms(puts: Iterable[Put], now_ms: int, ttl_ms: int) -> int:
    return max(expires_ms(put.keep_until_ms, now_ms, ttl_ms) for put in puts)


def _by_register(keys: Iterable[bytes]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for key in keys:
        found.setdefault(register_of(key), []).append(key)
    return found


def _decode_entry(dataset: str, raw: bytes) -> _Entry:
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        entry = None
        cause: Exception | None = error
    else:
        cause = None
    if entry is None or entry.format != 1:
        raise CorruptionError(
            f"dataset {dataset!r}: the catalogue in Redis has {raw[:60]!r}, expected an entry of format 1. Something "
            "else writes under this prefix, or a newer Millpond: give the store another prefix."
        ) from cause
    return entry
