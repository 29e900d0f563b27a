"""The key-value store as plain dicts: for tests, for examples, and as the oracle of the other stores.

Place on the data path: in the place of LMDB or Redis, within one process. Invariant and trade-off are those
of `KVStore`, with one difference: the data ends with the process. So a `MemoryStore` refuses to be pickled:
a Spark worker would write into its own copy, and nobody would read it.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from types import TracebackType
from typing import NoReturn, Self

from millpond.errors import OptionError, UnavailableError
from millpond.kv.expiry import wall_ms
from millpond.kv.store import (
    Get,
    Put,
    Rows,
    TimedValue,
    check_declaration,
    check_get,
    check_same_rows,
    checked_puts,
    expires_ms,
)


@dataclass
class _Dataset:
    rows: Rows = "many"
    ttl_ms: int | None = None
    keys: dict[bytes, dict[int, bytes]] = field(default_factory=dict)
    expires_ms: dict[tuple[bytes, int], int] = field(default_factory=dict)
    swept_ms: int = 0


class MemoryStore:
    """A `KVStore` in this process's memory, safe to use from several threads.

    >>> store = MemoryStore()
    >>> store.put_many("tiles", [Put(b"EWR", b"late", 300_000), Put(b"EWR", b"early", 0)])
    >>> store.get_many([Get("tiles", b"EWR"), Get("tiles", b"JFK")])
    [[TimedValue(time_ms=0, value=b'early'), TimedValue(time_ms=300000, value=b'late')], []]
    """

    def __init__(self, *, clock: Callable[[], int] = wall_ms) -> None:
        self._datasets: dict[str, _Dataset] = {}
        self._lock = threading.Lock()
        self._clock = clock
        self._closed = False

    def create(self, dataset: str, *, rows: Rows, ttl_ms: int | None = None) -> None:
        """Declare how many rows a key has, and how long they stay."""
        check_declaration(dataset, rows, ttl_ms)
        with self._lock:
            self._check_open()
            declared = self._datasets.setdefault(dataset, _Dataset(rows))
            check_same_rows(dataset, declared.rows, rows)
            declared.ttl_ms = ttl_ms

    def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows in one step; `DataError`, with nothing written, for a row beyond the limits."""
        rows = checked_puts(dataset, puts)
        with self._lock:
            self._check_open()
            written = self._datasets.setdefault(dataset, _Dataset())
            for put in rows:
                if written.rows == "one":
                    written.keys[put.key] = {put.time_ms: put.value}
                else:
                    written.keys.setdefault(put.key, {})[put.time_ms] = put.value
            if written.ttl_ms is not None:
                self._expire(written, rows, written.ttl_ms)
            elif written.expires_ms:
                for put in rows:
                    written.expires_ms.pop((put.key, put.time_ms), None)

    def bulk_put(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows; here the same as `put_many`."""
        self.put_many(dataset, puts)

    def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """Return the rows of each get, in the order of the gets, each sorted by time."""
        with self._lock:
            self._check_open()
            return [self._rows(get) for get in gets]

    def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        """Return up to `most` keys with their rows, in the order of their bytes, beginning after the key `after`."""
        with self._lock:
            self._check_open()
            found = self._datasets.get(dataset)
            keys = {} if found is None else found.keys
            following = nsmallest(most, (key for key in keys if after is None or key > after))
            return [(key, self._rows(Get(dataset, key))) for key in following]

    def delete_keys(self, dataset: str, keys: Iterable[bytes]) -> None:
        """Remove all rows of some keys."""
        with self._lock:
            self._check_open()
            found = self._datasets.get(dataset)
            if found is not None:
                for key in keys:
                    found.keys.pop(key, None)

    def drop(self, dataset: str) -> None:
        """Remove a dataset whole; an unknown one is no error."""
        with self._lock:
            self._check_open()
            self._datasets.pop(dataset, None)

    def datasets(self) -> list[str]:
        """Return the names of all datasets, sorted."""
        with self._lock:
            self._check_open()
            return sorted(self._datasets)

    def close(self) -> None:
        """Forget everything. May be called twice."""
        with self._lock:
            self._closed = True
            self._datasets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise OptionError(
            "a MemoryStore cannot be sent to another process: what is written there would be lost. "
            "Use LmdbStore(path) or RedisStore(url) where Spark workers or several processes share a store."
        )

    def _rows(self, get: Get) -> list[TimedValue]:
        dataset, key, first_ms, end_ms = check_get(get)
        found = self._datasets.get(dataset)
        times = {} if found is None else found.keys.get(key, {})
        return [TimedValue(time_ms, value) for time_ms, value in sorted(times.items()) if first_ms <= time_ms < end_ms]

    def _expire(self, dataset: _Dataset, puts: Sequence[Put], ttl_ms: int) -> None:
        """Note when the rows just written expire. Once per `ttl_ms`, remove all rows that have expired."""
        now_ms = self._clock()
        dataset.expires_ms.update(
            {(put.key, put.time_ms): expires_ms(put.keep_until_ms, now_ms, ttl_ms) for put in puts}
        )
        if now_ms < dataset.swept_ms + ttl_ms:
            return
        dataset.swept_ms = now_ms
        for (key, time_ms), until_ms in list(dataset.expires_ms.items()):
            if until_ms <= now_ms:
                del dataset.expires_ms[key, time_ms]
                times = dataset.keys.get(key, {})
                times.pop(time_ms, None)
                if not times:
                    dataset.keys.pop(key, None)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the MemoryStore is closed. Make a new one.")
