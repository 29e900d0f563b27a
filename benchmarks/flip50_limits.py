"""What Python can do of FLIP-50's word count at best, with nothing around it: no backend is faster than that.

One dictionary of all words, in a plain loop. And the least that a heap which spills can be: handles that a record calls
(enter, get, update), over a dictionary for each key group on the heap, LMDB and a dictionary of what has changed for
each on disk, and a log of the old values of a version. Nothing checks a value, can be read by a checkpoint, moves a key
group, takes a lock, or knows how much memory there is.

And RocksDB with as little around it: its get and put on keys that are made bytes for each record.
"""

import contextlib
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from benchmarks.flip50_turns import Round
from benchmarks.flip50_words import (
    ALL_IN_CACHE_BYTES,
    CHUNK,
    FIRST_COUNT,
    PARALLELISM,
    VERSION,
    records,
    records_of_round,
    words_in,
    words_of,
)
from millpond.state.rocksdb.database import WRITE_BUFFER_BYTES, Database

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(int).decode
_MAP_BYTES = 8 << 30
_FIRST_BYTE = _encode("0123456789abcdef")[:1]
"""Of every word, since all are of one length."""

Word = tuple[int, str]
"""A record: its key group and the word itself, with no tuple around it."""


class Rounds:
    """Works off records, as a backend does: what is changed on disk is written back at the end of a round."""

    def __init__(
        self,
        scale: float,
        count: Callable[[list[Word]], None],
        end_version: Callable[[], None] = lambda: None,
        write_back: Callable[[], None] = lambda: None,
        disk_share: float = 0.0,
    ) -> None:
        self._disk_share = disk_share
        self._words = words_of(scale)
        self._each = records_of_round(scale)
        self._count, self._end_version, self._write_back = count, end_version, write_back
        self._done = 0
        gc.collect()
        gc.freeze()
        gc.disable()

    def __call__(self, number: int) -> Round:
        """One round."""
        seconds, done = 0.0, 0
        while done < self._each:
            drawn = records(self._words, CHUNK, hash((number, done)))
            some = [(key_group, word) for key_group, (word,) in drawn]
            started = time.perf_counter()
            self._count(some)
            done += CHUNK
            if done % VERSION == 0:
                self._end_version()
            seconds += time.perf_counter() - started
        started = time.perf_counter()
        self._write_back()
        seconds += time.perf_counter() - started
        self._done += done
        return Round(done / seconds, self._disk_share)

    def check(self, total: int) -> None:
        """Whether all was counted."""
        assert total == self._words * FIRST_COUNT + self._done, (total, self._done)


@contextlib.contextmanager
def dictionary(scale: float) -> Iterator[Callable[[int], Round]]:
    """One dictionary."""
    counts = {word: FIRST_COUNT for group in range(PARALLELISM) for word in words_in(group, words_of(scale))}

    def count(some: list[Word]) -> None:
        for _, word in some:
            counts[word] = counts.get(word, 0) + 1

    rounds = Rounds(scale, count)
    yield rounds
    rounds.check(sum(counts.values()))


@contextlib.contextmanager
def rocksdb(scale: float) -> Iterator[Callable[[int], Round]]:
    """RocksDB with everything in its cache, set up as the backend's."""
    words = words_of(scale)
    with tempfile.TemporaryDirectory(prefix="millpond-flip50-") as folder:
        database = Database(Path(folder, "state"), WRITE_BUFFER_BYTES, ALL_IN_CACHE_BYTES)
        handle = database.handle
        get, first = handle.get, _encode(FIRST_COUNT)
        for group in range(PARALLELISM):
            keys = list(map(_encode, words_in(group, words)))
            database.write(keys, [first] * len(keys))

        def count(some: list[Word]) -> None:
            for _, word in some:
                at = _encode(word)
                handle[at] = _encode(_decode(get(at)) + 1)

        rounds = Rounds(scale, count)
        yield rounds
        total = sum(_decode(data) for _, data in database.scan(_FIRST_BYTE))
        database.close()
        rounds.check(total)


class Handles:
    """The least that a backend is: what a record calls. A dictionary a key group, or LMDB and one of what has changed.

    Args:
        tables: by key group.
        databases: in LMDB, of the first key groups.

    Attributes:
        key: the current one.
        read: of the open transaction.
        log: key group, key and old value of every change of a version.
    """

    def __init__(self, tables: list[dict[str, int]], databases: list[Any]) -> None:
        self.key = ""
        self.read: Callable[..., bytes]
        self.log: list[Any] = []
        self._tables = tables
        self._databases = databases
        self._group = -1
        self._old = 0

    def enter(self, key_group: int) -> None:
        """Turn to a key group."""
        self._group = key_group

    def get(self) -> int:
        """The count of the current key."""
        value = self._tables[self._group].get(self.key)
        if value is None:
            value = _decode(self.read(_encode(self.key), None, self._databases[self._group]))
        self._old = value
        return value

    def update(self, value: int) -> None:
        """Set it; the old one, which was read just before, is kept."""
        group, key = self._group, self.key
        self.log += (group, key, self._old)
        self._tables[group][key] = value


@contextlib.contextmanager
def handles(percent: int, scale: float) -> Iterator[Callable[[int], Round]]:
    """`Handles` over dictionaries, and over LMDB for a part of the key groups."""
    words, on_disk = words_of(scale), round(percent / 100 * PARALLELISM)
    with tempfile.TemporaryDirectory(prefix="millpond-flip50-") as folder:
        environment = lmdb.open(
            str(Path(folder, "groups")),
            subdir=False,
            map_size=_MAP_BYTES,
            max_dbs=PARALLELISM,
            sync=False,
            metasync=False,
            lock=False,
            readahead=False,
            meminit=False,
        )
        databases = [environment.open_db(b"%d" % group) for group in range(on_disk)]
        for group, database in enumerate(databases):
            _put(environment, database, dict.fromkeys(words_in(group, words), FIRST_COUNT))
        tables: list[dict[str, int]] = [{} for _ in databases]
        tables += [dict.fromkeys(words_in(group, words), FIRST_COUNT) for group in range(on_disk, PARALLELISM)]
        state = Handles(tables, databases)
        enter, get, update = state.enter, state.get, state.update

        def count(some: list[Word]) -> None:
            with environment.begin() as reader:
                state.read = reader.get
                for group, key in some:
                    enter(group)
                    state.key = key
                    update(get() + 1)

        def write_back() -> None:
            for group, database in enumerate(databases):
                _put(environment, database, tables[group])
                tables[group] = {}

        rounds = Rounds(scale, count, state.log.clear, write_back, on_disk / PARALLELISM)
        yield rounds
        total = sum(sum(table.values()) for table in tables)
        with environment.begin() as reader:
            for database in databases:
                with reader.cursor(database) as cursor:
                    total += sum(map(_decode, cursor.iternext(keys=False)))
        environment.close()
        rounds.check(total)


def _put(environment: lmdb.Environment, database: Any, counts: dict[str, int]) -> None:
    pairs = sorted((_encode(word), _encode(count)) for word, count in counts.items())
    with environment.begin(write=True) as transaction, transaction.cursor(database) as cursor:
        cursor.putmulti(pairs)
