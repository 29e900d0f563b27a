"""The key-value store in Redis, Valkey or a Redis Cluster, for asyncio.

Place on the data path: under a fetcher that serves on an event loop. `operations` and `dispatch` make the
commands and interpret the replies, as in `RedisStore`. This module only sends and waits.

Invariant: a connection belongs to the loop that opened it. It is idle only if every expected reply has been read from
it. A call that is cancelled closes its connections.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self, TypeVar

from millpond.errors import UnavailableError
from millpond.kv.expiry import wall_ms
from millpond.kv.redis.connections import READ_BYTES, Replies, import_hiredis, import_redis, new_connection
from millpond.kv.redis.dispatch import Pipeline, Send
from millpond.kv.redis.operations import Steps
from millpond.kv.redis.options import Address, RedisOptions, redis_options
from millpond.kv.redis.reads import rows_of_all
from millpond.kv.redis.steps import RedisSteps, Waits
from millpond.kv.store import Get, Put, Rows, TimedValue

_T = TypeVar("_T")


class AsyncRedisStore:
    """An `AsyncKVStore` in Redis 6.2 or later, Valkey, or a Redis Cluster; arguments as for `RedisStore`.

    It can be used on one event loop after another, but not on two at once.

    Example::

        async with AsyncRedisStore("redis+cluster://one:7000,two:7000") as store:
            await store.get_many([Get("route.batch", b"EWR|UA")])
    """

    def __init__(self, url: str | RedisOptions, *, clock: Callable[[], int] = wall_ms, **options: Any) -> None:
        self.options = redis_options(url, options) if isinstance(url, str) else url
        self._steps = RedisSteps(self.options, clock)
        self._operations = self._steps.operations
        self._connections: _LoopConnections | None = None
        self._closed = False

    async def create(self, dataset: str, *, rows: Rows, ttl_ms: int | None = None) -> None:
        """Declare how many rows a key has, and their time to live."""
        await self._run(self._operations.create(dataset, rows, ttl_ms))

    async def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows; those of one key become visible together."""
        await self._run(self._operations.put_many(dataset, puts))

    async def bulk_put(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write many rows, a pipeline of 5,000 at a time."""
        await self._run(self._operations.bulk_put(dataset, puts))

    async def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """Return the rows of each get, in the order of the gets, each sorted by time, in one round trip."""
        server, connections = self._steps.only_server(), self._connections
        if server is not None and connections is not None and not self._closed:
            # The common case, as in `RedisStore`.
            guesses, commands = self._operations.packed_reads.pack(gets)
            replies = await connections.ask(server, b"".join(commands), len(commands)) if commands else []
            if replies is not None:
                return rows_of_all(gets, guesses, replies)
        return await self._run(self._operations.get_many(gets))

    async def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        """Return up to `most` keys after a key, with their rows, in the store's own order."""
        return await self._run(self._operations.next_keys(dataset, after, most))

    async def delete_keys(self, dataset: str, keys: Iterable[bytes]) -> None:
        """Remove all rows of some keys."""
        await self._run(self._operations.delete_keys(dataset, keys))

    async def drop(self, dataset: str) -> None:
        """Remove a dataset in slices, and finish earlier drops that did not end."""
        await self._run(self._operations.drop(dataset))

    async def datasets(self) -> list[str]:
        """Return the names of all datasets, sorted."""
        return await self._run(self._operations.datasets())

    async def close(self) -> None:
        """Close the connections. May be called twice."""
        self._closed = True
        if self._connections is not None:
            await self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncRedisStore({', '.join(map(str, self.options.nodes))}, prefix={self.options.prefix!r})"

    async def _run(self, operation: Steps[_T]) -> _T:
        # A call that is cancelled ends here, and not when its frames are freed: it may be the one that tries a server.
        with closing(self._steps.run(operation)) as steps:
            return await self._advance(steps)

    async def _advance(self, steps: Waits[_T]) -> _T:
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
                    raise UnavailableError(f"{self!r} is closed. Make a new AsyncRedisStore.")
                connections = self._connections
                if connections is None or connections.loop is not asyncio.get_running_loop():
                    connections = self._connect()
                outcome = await connections.send(wanted.pipelines)
            else:
                await asyncio.sleep(wanted.seconds)

    def _connect(self) -> "_LoopConnections":
        self._connections = _LoopConnections(self.options)
        return self._connections


class _LoopConnections:
    """The connections of one event loop, at most `pool_size` to each server."""

    def __init__(self, options: RedisOptions) -> None:
        self.loop = asyncio.get_running_loop()
        self._options = options
        self._closed = False
        self._idle: dict[Address, list[Any]] = {}
        self._permits: dict[Address, asyncio.Semaphore] = {}
        self._exceptions = import_redis().exceptions
        self._hiredis = import_hiredis()

    async def send(self, pipelines: dict[Address, Pipeline]) -> dict[Address, Any]:
        """Send all pipelines concurrently. Return each server's replies, or the exception that ended its pipeline."""
        if len(pipelines) == 1:
            ((address, pipeline),) = pipelines.items()
            return {address: await self._send_to(address, pipeline)}
        outcomes = await asyncio.gather(*(self._send_to(*one) for one in pipelines.items()))
        return dict(zip(pipelines, outcomes, strict=True))

    async def ask(self, address: Address, data: bytes, count: int) -> list[Any] | None:
        """Send some packed commands on an idle connection, and read `count` replies.

        None if no connection is idle, if that fails, or if a reply is an error. `send` then meets the same failure and
        reports it.
        """
        idle, permit = self._idle.get(address), self._permits.get(address)
        if not idle or permit is None or permit.locked() or self.loop is not asyncio.get_running_loop():
            return None
        stream, writer = getattr(idle[-1], "_reader", None), getattr(idle[-1], "_writer", None)
        if stream is None or writer is None:
            return None  # a redis-py that keeps them elsewhere: `send` reads through its methods
        await permit.acquire()
        connection = idle.pop()
        replies: list[Any] | None = None
        try:
            replies = await self._exchanged(stream, writer, data, count)
        except (self._exceptions.RedisError, OSError):
            pass
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            permit.release()
        if replies is None:
            await self._close_with_others(address, connection)
            return None
        await self._give_back(address, connection)
        return None if self._hiredis.ReplyError in map(type, replies) else replies

    async def _exchanged(self, stream: Any, writer: Any, data: bytes, count: int) -> list[Any] | None:
        writer.write(data)
        seconds = self._options.timeout_ms / 1_000
        replies, has_more = Replies(self._hiredis, count), True
        while has_more:
            async with asyncio.timeout(seconds):
                has_more = replies.take(await stream.read(READ_BYTES))
        return replies.whole()

    async def close(self) -> None:
        """Close the idle connections, and those in use when they are given back.

        The connections of another loop are only forgotten: nothing can be awaited there any more.
        """
        self._closed = True
        idle, self._idle = self._idle, {}
        if self.loop is not asyncio.get_running_loop():
            return
        for connections in idle.values():
            for connection in connections:
                await connection.disconnect(nowait=True)

    async def _send_to(self, address: Address, pipeline: Pipeline) -> Any:
        permit = self._permits.get(address)
        if permit is None:
            permit = self._permits.setdefault(address, asyncio.Semaphore(self._options.pool_size))
        try:
            async with asyncio.timeout(self._options.timeout_ms / 1_000):
                await permit.acquire()
        except TimeoutError:
            return TimeoutError(f"all {self._options.pool_size} connections are in use; raise pool_size")
        try:
            return await self._ask(address, pipeline)
        finally:
            permit.release()

    async def _ask(self, address: Address, pipeline: Pipeline) -> Any:
        idle = self._idle.setdefault(address, [])
        connection = idle.pop() if idle else new_connection(self._options, address, on_loop=True)
        replies: list[Any] = []
        try:
            await connection.send_packed_command(pipeline.data, check_health=False)
            for _ in range(pipeline.replies):
                try:
                    replies.append(await connection.read_response())
                except self._exceptions.ResponseError as error:
                    replies.append(error)
        except (self._exceptions.RedisError, OSError) as error:
            await self._close_with_others(address, connection)
            return error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        await self._give_back(address, connection)
        return replies

    async def _give_back(self, address: Address, connection: Any) -> None:
        if self._closed:
            await connection.disconnect(nowait=True)
        else:
            self._idle.setdefault(address, []).append(connection)

    async def _close_with_others(self, address: Address, connection: Any) -> None:
        """Close a connection that failed, and the idle connections to its server."""
        await connection.disconnect(nowait=True)
        for other in self._idle.pop(address, []):
            await other.disconnect(nowait=True)
