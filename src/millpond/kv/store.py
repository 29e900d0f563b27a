"""What a key-value store is to Millpond: rows of bytes under (dataset, key, time).

Place on the data path: uploads and the stream write here, the fetcher reads from here. Everything
above sees only `KVStore`, so a store can be chosen by where it runs and not by what it can do.

Invariant: a `put_many` is one step. A reader sees all of it or nothing, and once it has returned,
every later read, in any process, sees it. A failed read raises; an empty list always means "no rows".

Idea: time is a part of the row's address, not a version to be picked by the store. So the tiles of a
key are one range, a re-written tile overwrites itself, and a batch row is a range of one.

Trade-off: no delete of single rows, and a walk over all keys only where a store offers it
(`WalkableStore`). Datasets are written once and dropped whole (an upload) or read by time (tiles), and
stores of any make can do that much well.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from millpond.errors import DataError

MAX_KEY_BYTES = 480
"""The longest key of a row. LMDB's own limit is 511 bytes, of which dataset and time take a part."""

MAX_DATASET_BYTES = 480
"""The longest name of a dataset, in UTF-8."""

MAX_VALUE_BYTES = 1 << 30
"""The largest value of a row: 1 GiB. A larger one is a mistake upstream, not a row."""

_MIN_TIME_MS = -(1 << 63)
_MAX_TIME_MS = (1 << 63) - 1


class Put(msgspec.Struct, frozen=True, gc=False):
    """One row to write; the same (key, time_ms) overwrites.

    >>> Put(b"EWR|UA", b"42", time_ms=1_000)
    Put(key=b'EWR|UA', value=b'42', time_ms=1000)
    """

    key: bytes
    value: bytes
    time_ms: int = 0


class Get(msgspec.Struct, frozen=True, gc=False):
    """The rows of one key with `start_ms <= time_ms < end_ms`; a bound of None is open.

    >>> Get("route.stream", b"EWR|UA", start_ms=0, end_ms=300_000).end_ms
    300000
    """

    dataset: str
    key: bytes
    start_ms: int | None = None
    end_ms: int | None = None


class TimedValue(msgspec.Struct, frozen=True, gc=False):
    """One row as read.

    >>> TimedValue(1_000, b"42").value
    b'42'
    """

    time_ms: int
    value: bytes


@runtime_checkable
class KVStore(Protocol):
    """Rows of bytes under (dataset, key, time_ms); safe to use from several threads.

    Every method raises `UnavailableError` when the store does not answer, and on a closed store.

    >>> from millpond.kv import MemoryStore
    >>> isinstance(MemoryStore(), KVStore)
    True
    """

    def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows in one step, creating the dataset if need be; the last of equal addresses wins.

        Raises `DataError`, with nothing written, for a key, value, time or name beyond its limit.
        """
        ...

    def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """The rows of each get, in the order of the gets, each sorted by time; none is an empty list."""
        ...

    def drop(self, dataset: str) -> None:
        """Remove a dataset whole, in one step for readers; an unknown one is no error."""
        ...

    def datasets(self) -> list[str]:
        """The names of all datasets, sorted."""
        ...

    def close(self) -> None:
        """Give back what the store holds. May be called twice."""
        ...


@runtime_checkable
class WalkableStore(KVStore, Protocol):
    """A store whose datasets can also be walked over, some keys at a time."""

    def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        """Up to `most` keys with their rows, in an order of the store's, beginning after a key; none at the end.

        Each call sees one moment. A key that is there all the time is met once; one that is written or dropped
        meanwhile may be met or not.
        """
        ...


def encode_dataset(dataset: str) -> bytes:
    """The UTF-8 bytes of a dataset's name; `DataError` if it is empty or too long.

    >>> encode_dataset("serving_info")
    b'serving_info'
    """
    name = dataset.encode()
    if not 0 < len(name) <= MAX_DATASET_BYTES:
        raise DataError(
            f"dataset name {dataset[:40]!r} has {len(name)} bytes; a name has 1 to {MAX_DATASET_BYTES}. "
            "Choose a shorter name for the GroupBy."
        )
    return name


def check_put(dataset: str, put: Put) -> None:
    """Refuse a row that not every store could hold, naming the dataset and what is wrong.

    >>> check_put("route.stream", Put(b"k" * 1000, b""))
    Traceback (most recent call last):
    millpond.errors.DataError: dataset 'route.stream': a key of 1000 bytes (b'kkkkkkkkkkkkkkkkkkkkkkkk'...) ...
    """
    if not isinstance(put.key, bytes) or not isinstance(put.value, bytes):
        raise DataError(
            f"dataset {dataset!r}: key and value are bytes, got {type(put.key).__name__} and "
            f"{type(put.value).__name__}. Encode them with the plan of the GroupBy."
        )
    if len(put.key) > MAX_KEY_BYTES:
        raise DataError(
            f"dataset {dataset!r}: a key of {len(put.key)} bytes ({put.key[:24]!r}...) is over the limit of "
            f"{MAX_KEY_BYTES}. Shorten the key columns, or use a digest of them as the key."
        )
    if len(put.value) > MAX_VALUE_BYTES:
        raise DataError(
            f"dataset {dataset!r}, key {put.key[:24]!r}: a value of {len(put.value)} bytes is over the limit of "
            f"{MAX_VALUE_BYTES}. Split it over several keys."
        )
    if not _MIN_TIME_MS <= put.time_ms <= _MAX_TIME_MS:
        raise DataError(
            f"dataset {dataset!r}, key {put.key[:24]!r}: time_ms {put.time_ms} does not fit 64 bits. "
            "Times are milliseconds since 1970 UTC."
        )


def check_get(get: Get) -> None:
    """Refuse a get that no row can answer because its bounds are no times.

    >>> check_get(Get("route.stream", b"EWR", end_ms=1 << 70))
    Traceback (most recent call last):
    millpond.errors.DataError: dataset 'route.stream', key b'EWR': a bound of None to 1180591620717411303424 ...
    """
    for bound in (get.start_ms, get.end_ms):
        if bound is not None and not _MIN_TIME_MS <= bound <= _MAX_TIME_MS:
            raise DataError(
                f"dataset {get.dataset!r}, key {get.key[:24]!r}: a bound of {get.start_ms} to {get.end_ms} does not "
                "fit 64 bits. Times are milliseconds since 1970 UTC; an open bound is None."
            )
