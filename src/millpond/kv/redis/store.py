"""The key-value store in Redis, Valkey or a Redis Cluster, for threads.

Place on the data path: in place of LMDB when writers and fetchers run on several machines.

Invariant: the rows of one key are one string or one sorted set, written by one command or script, so they become
visible together. A read of many keys is one pipeline to each server. `layout` defines how rows are stored,
`dispatch` what is retried.

Trade-off: there are no guarantees across keys, and a `bulk_put` takes a round trip per 5,000 rows. Rows are as
durable as the server is configured to be (`appendonly`, replicas). A server that evicts (`maxmemory-policy` other
than `noeviction`) loses rows, which then look absent.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from millpond.errors import UnavailableError
from millpond.kv.expiry import wall_ms
from millpond.kv.redis.connections import Connections
from millpond.kv.redis.dispatch import Send
from millpond.kv.redis.operations import Steps
from millpond.kv.redis.options import RedisOptions, redis_options
from millpond.kv.redis.reads import rows_of_all
from millpond.kv.redis.steps import RedisSteps, Waits
from millpond.kv.store import Get, Put, Rows, TimedValue

if TYPE_CHECKING:
    from millpond.kv.redis.async_store import AsyncRedisStore

_T = TypeVar("_T")


class RedisStore:
    """A `KVStore` in Redis 6.2 or later, Valkey, or a Redis Cluster.

    A store can be pickled, and can be used after a fork: every process opens its own connections at first use.

    Args:
        url: `redis://user:password@host:port/0`, or `valkey://`; with TLS `rediss://` or `valkeys://`;
            for a cluster `redis+cluster://host:port,host:port` with some of its nodes. The options below
            may also be given in the URL's query.
        prefix: the prefix of the names of all keys, so that several stores can share a server.
        pool_size: the largest number of connections to one server.
        timeout_ms: how long one call waits for a connection or for the next bytes of a reply.
        retry_ms: how long failures are retried before `UnavailableError` is raised.
        read_from: `"primary"`, or `"replicas"`, whose replies may be out of date.
        replicas: for `read_from="replicas"` without a cluster, `"host:port,host:port"`.
        tls_ca_file: the certificate authorities to trust, instead of the system's.
        tls_cert_file: this client's certificate, if the server requires one.
        tls_key_file: the private key of that certificate.
        clock: returns the time by which rows expire.

    Raises:
        OptionError: the URL or an option is wrong.

    Example::

        with RedisStore("redis://localhost:6379/0", prefix="shop") as store:
            store.create("route.batch", rows="one", ttl_ms=172_800_000)
            store.put_many("route.batch", [Put(b"EWR|UA", b"42", time_ms=0)])
    """

    def __init__(self, url: str | RedisOptions, *, clock: Callable[[], int] = wall_ms, **options: Any) -> None:
        self.options = redis_options(url, options) if isinstance(url, str) else url
        self._steps = RedisSteps(self.options, clock)
        self._operations = self._steps.operations
        self._connections: Connections | None = None
        self._closed = False

    def create(self, dataset: str, *, rows: Rows, ttl_ms: int | None = None) -> None:
        """Declare how many rows a key has, and their time to live."""
        self._run(self._operations.create(dataset, rows, ttl_ms))

    def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows; those of one key become visible together. `DataError`, with nothing written, for one too large.

        Raises `UnavailableError` naming host and port if a server is down, full or refuses writes.
        """
        self._run(self._operations.put_many(dataset, puts))

    def bulk_put(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write many rows, a pipeline of 5,000 at a time."""
        self._run(self._operations.bulk_put(dataset, puts))

    def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """Return the rows of each get, in the order of the gets, each sorted by time, in one round trip."""
        server = self._steps.only_server()
        if server is not None and self._connections is not None and not self._closed:
            # The common case, without bookkeeping. If it fails, the general path meets the same failure and handles it.
            guesses, commands = self._operations.packed_reads.pack(gets)
            replies = self._connections.ask(server, b"".join(commands), len(commands)) if commands else []
            if replies is not None:
                return rows_of_all(gets, guesses, replies)
        return self._run(self._operations.get_many(gets))

    def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        """Return up to `most` keys after a key, with their rows, in the store's own order."""
        return self._run(self._operations.next_keys(dataset, after, most))

    def delete_keys(self, dataset: str, keys: Iterable[bytes]) -> None:
        """Remove all rows of some keys."""
        self._run(self._operations.delete_keys(dataset, keys))

    def drop(self, dataset: str) -> None:
        """Remove a dataset in slices, and finish earlier drops that did not end. An unknown dataset is no error."""
        self._run(self._operations.drop(dataset))

    def datasets(self) -> list[str]:
        """Return the names of all datasets, sorted."""
        return self._run(self._operations.datasets())

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._closed = True
        if self._connections is not None:
            self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def async_twin(self) -> "AsyncRedisStore":
        """Return a store with the same options for asyncio, with connections of its own."""
        from millpond.kv.redis.async_store import AsyncRedisStore

        return AsyncRedisStore(self.options, clock=self._steps.clock)

    def __reduce__(self) -> tuple[Callable[..., "RedisStore"], tuple[RedisOptions, Callable[[], int]]]:
        return _rebuild, (self.options, self._steps.clock)

    def __repr__(self) -> str:
        return f"RedisStore({', '.join(map(str, self.options.nodes))}, prefix={self.options.prefix!r})"

    def _run(self, operation: Steps[_T]) -> _T:
        # A call that is interrupted ends here, not when its frames are freed: it may be the one that tries a server.
        with closing(self._steps.run(operation)) as steps:
            return self._advance(steps)

    def _advance(self, steps: Waits[_T]) -> _T:
        outcome: Any = None
        while True:
            try:
                wanted = steps.send(outcome)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            outcome = None
            if isinstance(wanted, Send):
                if self._closed:
                    raise UnavailableError(f"{self!r} is closed. Make a new RedisStore.")
                outcome = (self._connections or self._connect()).send(wanted.pipelines)
            else:
                time.sleep(wanted.seconds)  # noqa: TID251 - an adapter: `dispatch` chooses how long

    def _connect(self) -> Connections:
        self._connections = Connections(self.options)
        return self._connections


def _rebuild(options: RedisOptions, clock: Callable[[], int]) -> RedisStore:
    return RedisStore(options, clock=clock)
