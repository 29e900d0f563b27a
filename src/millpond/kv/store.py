"""The contract of a key-value store for Millpond: rows of bytes under (dataset, key, time).

Place on the data path: uploads and the stream write here, the fetcher reads from here. Everything
above sees only `KVStore` or `AsyncKVStore`. So a store is chosen by where it runs, not by what it can do.

The contract is what a Redis Cluster can keep. Every store keeps it, and `tests/kv/test_every_store.py`
tests each point:

1. *One step per key.* The rows of one key in one `put_many` become visible together (a tile and its
   amendment marker), and all of them or none are written.
2. *Order within one key.* Puts of one writer take effect in the order of its calls. Once `put_many` has
   returned, every later read sees its rows, in any process.
3. *Nothing across keys.* A reader may see some keys of a `put_many` and not yet others, and a
   `put_many` that raised may have written some keys. Whole uploads become visible by one record that
   is written last and points to their dataset.
4. *Absence is an answer.* An empty list means that there is no such row. A failed read raises. A store on
   several servers, of which some answered, raises `PartlyReadError`, which has their answers.
5. *A declared dataset.* With `create(rows="one")` a key has one row, which a put replaces whatever its
   time. With `rows="many"`, the default, a row lies under its key and time. With `ttl_ms` a row stays
   at least that long after it was last written, and at least until its own `keep_until_ms`; it may be gone
   any time later.
6. *A drop removes all rows.* While it runs, a reader may see some rows and not others. What is put into
   the dataset while it runs may be dropped too. A drop whose process died is finished by the next one.

Idea: time is a part of the row's address, not a version that the store picks. So the tiles of a key are one
range, a tile that is written again overwrites itself, and a batch row is a range of one.

Trade-off: no delete of single rows, no transaction over several keys, and a walk over all keys only where a
store offers it (`WalkableStore`).
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from millpond.errors import DataError, OptionError, UnavailableError

MAX_KEY_BYTES = 480
"""The longest key of a row. LMDB's own limit is 511 bytes, of which dataset and time take a part."""

MAX_DATASET_BYTES = 480
"""The longest name of a dataset, in UTF-8."""

MAX_VALUE_BYTES = 1 << 30
"""The largest value of a row: 1 GiB. A larger one is a mistake upstream, not a row."""

MAX_TIME_MS = 1 << 53
"""Times of rows lie between the negative of this and this, both excluded: Redis holds scores exactly up to here."""

Rows: TypeAlias = Literal["one", "many"]
"""How many rows a key of a dataset has: one (batch rows), or many at different times (tiles)."""


class Put(msgspec.Struct, frozen=True, gc=False):
    """One row to write; the same (key, time_ms) overwrites.

    `keep_until_ms` is a moment before which the row must not expire, in milliseconds since 1970 UTC. It
    matters only in a dataset with `ttl_ms`.

    >>> Put(b"EWR|UA", b"42", time_ms=1_000)
    Put(key=b'EWR|UA', value=b'42', time_ms=1000, keep_until_ms=0)
    """

    key: bytes
    value: bytes
    time_ms: int = 0
    keep_until_ms: int = 0


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


class PartlyReadError(UnavailableError):
    """Some gets of a `get_many` could not be answered, and others could.

    Attributes:
        answers: for each get its rows, or the error of the server that has them.

    >>> rows = [TimedValue(0, b"42")]
    >>> failure = PartlyReadError([rows, UnavailableError("Redis at two:7000 failed")])
    >>> failure.answers[0] is rows, str(failure)
    (True, 'Redis at two:7000 failed')
    """

    def __init__(self, answers: Sequence[list[TimedValue] | UnavailableError]) -> None:
        super().__init__("; ".join(dict.fromkeys(str(one) for one in answers if isinstance(one, UnavailableError))))
        self.answers = list(answers)

    def __reduce__(self) -> tuple[type["PartlyReadError"], tuple[list[list[TimedValue] | UnavailableError]]]:
        return PartlyReadError, (self.answers,)


@runtime_checkable
class KVStore(Protocol):
    """Rows of bytes under (dataset, key, time_ms); safe to use from several threads.

    The module's docstring is the contract. Every method raises `UnavailableError` when the store does not
    answer, and on a closed store.

    >>> from millpond.kv import MemoryStore
    >>> isinstance(MemoryStore(), KVStore)
    True
    """

    def create(self, dataset: str, *, rows: Rows, ttl_ms: int | None = None) -> None:
        """Declare a dataset before its first row. An undeclared one behaves as `rows="many"` without expiry.

        Declaring it again is no error and may change `ttl_ms`, for rows that are written from then on.

        Args:
            dataset: its name.
            rows: `"one"` row per key, or `"many"` at different times.
            ttl_ms: how long rows stay at least after they were written; forever if None. A row with a later
                `Put.keep_until_ms` stays until then.

        Raises:
            OptionError: the dataset exists with other `rows`, or `ttl_ms` is below 1.
            DataError: the name is empty or too long.
        """
        ...

    def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows, those of one key in one step, creating the dataset if need be.

        The last of equal addresses wins. Raises `DataError`, with nothing written, for a key, value, time
        or name beyond its limit.
        """
        ...

    def bulk_put(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write many rows quickly into a dataset that nobody reads yet; several writers may do so at once.

        The rows are taken piece by piece, so their number has no limit. Pieces are not one step: after an
        error some rows are written.
        """
        ...

    def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """Return the rows of each get, in the order of the gets, each sorted by time; none is an empty list.

        Raises `PartlyReadError` if some servers of the store answered and others did not.
        """
        ...

    def delete_keys(self, dataset: str, keys: Iterable[bytes]) -> None:
        """Remove all rows of some keys; one that has none is no error."""
        ...

    def drop(self, dataset: str) -> None:
        """Remove a dataset with all its rows; an unknown one is no error."""
        ...

    def datasets(self) -> list[str]:
        """Return the names of all datasets, sorted."""
        ...

    def close(self) -> None:
        """Release what the store holds. May be called twice. The stores of Millpond do it at the end of a `with`."""
        ...


@runtime_checkable
class WalkableStore(KVStore, Protocol):
    """A store whose datasets can also be walked over, some keys at a time."""

    def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        """Return up to `most` keys with their rows, beginning after the key `after`; an empty list at the end.

        The store chooses the order. A key that is there all the time is returned once; one that is written or
        dropped meanwhile may be returned or not.
        """
        ...


@runtime_checkable
class AsyncKVStore(Protocol):
    """`KVStore` with methods to await; `async_store` makes one of any store."""

    async def create(self, dataset: str, *, rows: Rows, ttl_ms: int | None = None) -> None:
        """Declare a dataset before its first row."""
        ...

    async def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows, those of one key in one step."""
        ...

    async def bulk_put(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write many rows quickly into a dataset that nobody reads yet."""
        ...

    async def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """Return the rows of each get, in the order of the gets, each sorted by time."""
        ...

    async def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        """Return up to `most` keys with their rows, beginning after the key `after`; an empty list at the end."""
        ...

    async def delete_keys(self, dataset: str, keys: Iterable[bytes]) -> None:
        """Remove all rows of some keys."""
        ...

    async def drop(self, dataset: str) -> None:
        """Remove a dataset with all its rows."""
        ...

    async def datasets(self) -> list[str]:
        """Return the names of all datasets, sorted."""
        ...

    async def close(self) -> None:
        """Release what the store holds. May be called twice."""
        ...


def encode_dataset(dataset: str) -> bytes:
    """Return the UTF-8 bytes of a dataset's name; `DataError` if it is empty or too long.

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
    """Raise if not every store could hold a row; the error names the dataset and what is wrong.

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
    if not -MAX_TIME_MS < put.time_ms < MAX_TIME_MS:
        raise DataError(
            f"dataset {dataset!r}, key {put.key[:24]!r}: time_ms {put.time_ms} does not fit 53 bits. "
            "Times are milliseconds since 1970 UTC."
        )
    if not 0 <= put.keep_until_ms < MAX_TIME_MS:
        raise DataError(
            f"dataset {dataset!r}, key {put.key[:24]!r}: keep_until_ms is {put.keep_until_ms}; expected 0 or "
            "milliseconds since 1970 UTC, within 53 bits."
        )


def checked_puts(dataset: str, puts: Iterable[Put]) -> list[Put]:
    """Return the rows to write. Raise `DataError`, which names dataset and fault, if not every store can hold them.

    >>> checked_puts("route.stream", iter([Put(b"EWR", b"42")]))
    [Put(key=b'EWR', value=b'42', time_ms=0, keep_until_ms=0)]
    """
    encode_dataset(dataset)
    rows = list(puts)
    if not _all_fit(rows):
        for put in rows:
            check_put(dataset, put)
    return rows


def _all_fit(puts: Sequence[Put]) -> bool:
    """Return whether every store can hold these rows; `check_put` says what is wrong with a single one."""
    if not puts:
        return True
    keys, values = [put.key for put in puts], [put.value for put in puts]
    if {*map(type, keys), *map(type, values)} != {bytes}:
        return False
    times, kept_until = {put.time_ms for put in puts}, {put.keep_until_ms for put in puts}
    return (
        max(map(len, keys)) <= MAX_KEY_BYTES
        and max(map(len, values)) <= MAX_VALUE_BYTES
        and min(times) > -MAX_TIME_MS
        and max(times) < MAX_TIME_MS
        and min(kept_until) >= 0
        and max(kept_until) < MAX_TIME_MS
    )


def expires_ms(keep_until_ms: int, now_ms: int, ttl_ms: int) -> int:
    """Return when a row expires that is written now into a dataset with `ttl_ms`.

    `ttl_ms` is the least. A row whose last read is known has a `Put.keep_until_ms`, which may be later: a tile of the
    future must stay longer than a new one, and a tile that a replay writes long after its events only for `ttl_ms`.

    >>> expires_ms(500, now_ms=100, ttl_ms=50), expires_ms(90, now_ms=100, ttl_ms=50)
    (500, 150)
    """
    return max(now_ms + ttl_ms, keep_until_ms)


def check_declaration(dataset: str, rows: str, ttl_ms: int | None) -> None:
    """Raise `OptionError` for what `create` cannot declare.

    >>> check_declaration("route.stream", "some", None)
    Traceback (most recent call last):
    millpond.errors.OptionError: dataset 'route.stream': rows is 'some'; expected 'one' or 'many'.
    """
    encode_dataset(dataset)
    if rows not in ("one", "many"):
        raise OptionError(f"dataset {dataset!r}: rows is {rows!r}; expected 'one' or 'many'.")
    if ttl_ms is not None and ttl_ms < 1:
        raise OptionError(
            f"dataset {dataset!r}: ttl_ms is {ttl_ms}; expected 1 or more, or None to keep rows for ever."
        )


def check_same_rows(dataset: str, present: str, asked: str) -> None:
    """Raise if a dataset is declared again with another number of rows per key."""
    if present != asked:
        raise OptionError(
            f"dataset {dataset!r} exists with rows={present!r}, asked was rows={asked!r}. Drop it first, or use "
            "another name."
        )


def check_walkable(store: KVStore) -> WalkableStore:
    """Return the store, typed as one that can be walked over; `OptionError` if it has no `next_keys`."""
    if not isinstance(store, WalkableStore):
        raise OptionError(f"a {type(store).__name__} cannot be walked over: it has no next_keys. Use another store.")
    return store


def check_get(get: Get) -> tuple[str, bytes, int, int]:
    """Return dataset, key, first time and end of a get; raise `DataError` if a bound is not a time a row can have.

    >>> check_get(Get("route.stream", b"EWR", end_ms=300_000)) == ("route.stream", b"EWR", -MAX_TIME_MS, 300_000)
    True

    >>> check_get(Get("route.stream", b"EWR", end_ms=1 << 70))
    Traceback (most recent call last):
    millpond.errors.DataError: dataset 'route.stream', key b'EWR': a bound of None to 1180591620717411303424 ...
    """
    for bound in (get.start_ms, get.end_ms):
        if bound is not None and not -MAX_TIME_MS <= bound <= MAX_TIME_MS:
            raise DataError(
                f"dataset {get.dataset!r}, key {get.key[:24]!r}: a bound of {get.start_ms} to {get.end_ms} does not "
                "fit 53 bits. Times are milliseconds since 1970 UTC; an open bound is None."
            )
    first_ms = -MAX_TIME_MS if get.start_ms is None else get.start_ms
    return get.dataset, get.key, first_ms, MAX_TIME_MS if get.end_ms is None else get.end_ms
