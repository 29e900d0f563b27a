"""What Python can do of FLIP-50's word count at best, with nothing around it: no backend is faster than that.

One dictionary of all words, in a plain loop. And the least that a heap which spills can be: handles that a record calls
(enter, get, update), over a dictionary for each key group on the heap, LMDB and a dictionary of what has changed for
each on disk, and a log of the old values of a version. Nothing checks a value, can be read by a checkpoint, moves a key
group, takes a lock, or knows how much memory there is.
"""

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from benchmarks.flip50_words import (
    CHUNK,
    FIRST_COUNT,
    PARALLELISM,
    RECORDS,
    ROUNDS,
    VERSION,
    WARM_UP,
    keys_of,
    records,
    words_of,
)
from millpond.state.rows import Row
from millpond.state.spillable.memory import resident

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(int).decode
_MAP_BYTES = 8 << 30


def dictionary(scale: float) -> dict[str, Any]:
    """One dictionary."""
    words = words_of(scale)
    counts = {key: FIRST_COUNT for group in range(PARALLELISM) for key in keys_of(group, words)}

    def count(some: list[tuple[int, Row]]) -> None:
        for _, key in some:
            counts[key] = counts.get(key, 0) + 1

    found = _measured("one dictionary", count, lambda: None, lambda: None, words)
    assert sum(counts.values()) == _counted(words)
    return found


class Handles:
    """The least that a backend is: what a record calls. A dictionary a key group, or LMDB and one of what has changed.

    Args:
        tables: by key group.
        databases: in LMDB, of the first key groups.

    Attributes:
        read: of the open transaction.
    """

    def __init__(self, tables: list[dict[Row, int]], databases: list[Any]) -> None:
        self.key: Row = ()
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


def handles(percent: int, scale: float) -> dict[str, Any]:
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
            _put(environment, database, dict.fromkeys(keys_of(group, words), FIRST_COUNT))
        tables: list[dict[Row, int]] = [{} for _ in databases]
        tables += [dict.fromkeys(keys_of(group, words), FIRST_COUNT) for group in range(on_disk, PARALLELISM)]
        state = Handles(tables, databases)
        enter, get, update = state.enter, state.get, state.update

        def count(some: list[tuple[int, Row]]) -> None:
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

        found = _measured(f"bare handles, {percent} % on disk", count, state.log.clear, write_back, words)
        total = sum(sum(table.values()) for table in tables)
        with environment.begin() as reader:
            for database in databases:
                with reader.cursor(database) as cursor:
                    total += sum(map(_decode, cursor.iternext(keys=False)))
        environment.close()
        assert total == _counted(words)
        return found


def _counted(words: int) -> int:
    """The sum of all counts in the end."""
    return words * FIRST_COUNT + (WARM_UP + ROUNDS) * RECORDS


def _put(environment: lmdb.Environment, database: Any, counts: dict[Row, int]) -> None:
    pairs = sorted((_encode(key), _encode(count)) for key, count in counts.items())
    with environment.begin(write=True) as transaction, transaction.cursor(database) as cursor:
        cursor.putmulti(pairs)


def _measured(
    name: str,
    count: Callable[[list[tuple[int, Row]]], None],
    end_version: Callable[[], None],
    write_back: Callable[[], None],
    words: int,
) -> dict[str, Any]:
    """Records per second, as of a backend: what is changed on disk is written back at the end of a round."""
    gc.collect()
    gc.freeze()
    gc.disable()
    rounds = []
    for number in range(WARM_UP + ROUNDS):
        seconds, done = 0.0, 0
        while done < RECORDS:
            some = records(words, CHUNK, hash((number, done)))
            started = time.perf_counter()
            count(some)
            done += CHUNK
            if done % VERSION == 0:
                end_version()
            seconds += time.perf_counter() - started
        started = time.perf_counter()
        write_back()
        seconds += time.perf_counter() - started
        if number >= WARM_UP:
            rounds.append(done / seconds)
        print(f"{name} round {number}: {done / seconds:,.0f} records/s", file=sys.stderr, flush=True)
    return {"rows_per_second": round(statistics.median(rounds)), "own_bytes": resident().own, "words": words}
