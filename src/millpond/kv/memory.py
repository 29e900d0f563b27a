"""The key-value store as plain dicts: for tests, for examples, and as the oracle of the other stores.

Place on the data path: where LMDB or Redis would be, within one process. Invariant and trade-off are
those of `KVStore`; the one difference is that the data ends with the process, so a `MemoryStore`
refuses to be pickled: a Spark worker would write into its own copy, and nobody would read it.
"""

import threading
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import NoReturn

from millpond.errors import OptionError, UnavailableError
from millpond.kv.store import Get, Put, TimedValue, check_get, check_put, encode_dataset


class MemoryStore:
    """A `KVStore` in this process's memory, safe to use from several threads.

    >>> store = MemoryStore()
    >>> store.put_many("tiles", [Put(b"EWR", b"late", 300_000), Put(b"EWR", b"early", 0)])
    >>> store.get_many([Get("tiles", b"EWR"), Get("tiles", b"JFK")])
    [[TimedValue(time_ms=0, value=b'early'), TimedValue(time_ms=300000, value=b'late')], []]
    """

    def __init__(self) -> None:
        self._datasets: dict[str, dict[bytes, dict[int, bytes]]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows in one step; `DataError`, with nothing written, for a row beyond the limits."""
        encode_dataset(dataset)
        rows = list(puts)
        for put in rows:
            check_put(dataset, put)
        with self._lock:
            self._check_open()
            keys = self._datasets.setdefault(dataset, {})
            for put in rows:
                keys.setdefault(put.key, {})[put.time_ms] = put.value

    def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """The rows of each get, in the order of the gets, each sorted by time."""
        with self._lock:
            self._check_open()
            return [self._rows(get) for get in gets]

    def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        """Up to `most` keys with their rows, in the order of their bytes, beginning after a key."""
        with self._lock:
            self._check_open()
            keys = self._datasets.get(dataset, {})
            following = nsmallest(most, (key for key in keys if after is None or key > after))
            return [(key, self._rows(Get(dataset, key))) for key in following]

    def drop(self, dataset: str) -> None:
        """Remove a dataset whole; an unknown one is no error."""
        with self._lock:
            self._check_open()
            self._datasets.pop(dataset, None)

    def datasets(self) -> list[str]:
        """The names of all datasets, sorted."""
        with self._lock:
            self._check_open()
            return sorted(self._datasets)

    def close(self) -> None:
        """Forget everything. May be called twice."""
        with self._lock:
            self._closed = True
            self._datasets.clear()

    def __reduce__(self) -> NoReturn:
        raise OptionError(
            "a MemoryStore cannot be sent to another process: what is written there would be lost. "
            "Use LmdbStore(path) where Spark workers or several processes share a store."
        )

    def _rows(self, get: Get) -> list[TimedValue]:
        check_get(get)
        times = self._datasets.get(get.dataset, {}).get(get.key, {})
        return [
            TimedValue(time_ms, value)
            for time_ms, value in sorted(times.items())
            if (get.start_ms is None or get.start_ms <= time_ms) and (get.end_ms is None or time_ms < get.end_ms)
        ]

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the MemoryStore is closed. Make a new one.")
