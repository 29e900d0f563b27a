"""A pool of one process's connections to Redis servers, never shared across a fork.

Place on the data path: under `RedisStore`. redis-py opens a connection and logs in. The replies to reads, which are
nearly all replies, are parsed by hiredis directly from the socket (`Replies`).

Invariant: a connection is idle only if every expected reply has been read from it. If one fails, it is closed together
with the idle connections to its server, because the server is probably down.

Trade-off: redis-py's own pools and cluster client are not used. They check a connection with a system call each time
it is taken, wrap each command, and have their own retries, which would exceed the time-out of a call.
"""

import os
from queue import Empty, SimpleQueue
from typing import Any, cast

from millpond.errors import MissingDependencyError
from millpond.kv.redis.dispatch import Pack, Pipeline
from millpond.kv.redis.options import Address, RedisOptions

READ_BYTES = 1 << 16
"""The most bytes read from a socket at once."""


class Connections:
    """A pool of connections for threads, at most `pool_size` to each server."""

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        self._pid = os.getpid()
        self._closed = False
        self._idle: dict[Address, list[Any]] = {}
        self._permits: dict[Address, SimpleQueue[None]] = {}
        self._exceptions = import_redis().exceptions
        self._hiredis = import_hiredis()

    def send(self, pipelines: dict[Address, Pipeline]) -> dict[Address, Any]:
        """Send all pipelines, then read. Return each server's replies, or the exception that ended its pipeline."""
        if self._pid != os.getpid():
            self._forget()
        outcome: dict[Address, Any] = {}
        sent: list[tuple[Address, Any, int]] = []
        try:
            # In one order for all threads: else two of them could wait for a connection that the other has.
            for address, pipeline in sorted(pipelines.items()):
                try:
                    connection = self._take(address)
                except TimeoutError as error:
                    outcome[address] = error
                    continue
                sent.append((address, connection, pipeline.replies))
                try:
                    connection.send_packed_command([pipeline.data], check_health=False)
                except (self._exceptions.RedisError, OSError) as error:
                    outcome[address] = error
            for address, connection, count in sent:
                if address not in outcome:
                    outcome[address] = self._replies(connection, count)
        finally:
            for address, connection, _ in sent:
                self._give_back(address, connection, sound=type(outcome.get(address)) is list)
        return outcome

    def ask(self, address: Address, data: bytes, count: int) -> list[Any] | None:
        """Send some packed commands, and read `count` replies; None if that fails, or a reply is an error."""
        if self._pid != os.getpid():
            self._forget()
        replies: list[Any] | None = None
        is_sound = False
        try:
            connection = self._take(address)
        except TimeoutError:
            return None
        try:
            if not connection.is_connected:
                connection.connect()
            sock = getattr(connection, "_sock", None)
            if sock is None:
                is_sound = True  # a redis-py that keeps it elsewhere: `send` reads through its methods
            else:
                replies = self._exchanged(sock, data, count)
                is_sound = replies is not None
        except (self._exceptions.RedisError, OSError):
            return None
        finally:
            self._give_back(address, connection, sound=is_sound)
        return None if replies is None or self._hiredis.ReplyError in map(type, replies) else replies

    def close(self) -> None:
        """Close the idle connections, and those in use when they are given back."""
        self._closed = True
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.disconnect()

    def _replies(self, connection: Any, count: int) -> Any:
        replies: list[Any] = []
        try:
            for _ in range(count):
                try:
                    replies.append(connection.read_response())
                except self._exceptions.ResponseError as error:
                    replies.append(error)
        except (self._exceptions.RedisError, OSError) as error:
            return error
        return replies

    def _exchanged(self, sock: Any, data: bytes, count: int) -> list[Any] | None:
        sock.sendall(data)
        replies = Replies(self._hiredis, count)
        while replies.take(sock.recv(READ_BYTES)):
            pass
        return replies.whole()

    def _take(self, address: Address) -> Any:
        permit = self._permits.get(address)
        if permit is None:
            permit = self._permits.setdefault(address, _permits(self._options.pool_size))
        try:
            permit.get(timeout=self._options.timeout_ms / 1_000)
        except Empty:
            raise TimeoutError(
                f"all {self._options.pool_size} connections are in use by other threads; raise pool_size"
            ) from None
        try:
            return self._idle.get(address, []).pop()
        except IndexError:
            return new_connection(self._options, address)

    def _give_back(self, address: Address, connection: Any, *, sound: bool) -> None:
        if sound and not self._closed:
            self._idle.setdefault(address, []).append(connection)
        else:
            connection.disconnect()
            for other in self._idle.pop(address, []):
                other.disconnect()
        self._permits[address].put(None)

    def _forget(self) -> None:
        """Begin with an empty pool in a forked child; the parent's connections and locks are not touched."""
        self._pid = os.getpid()
        self._idle = {}
        self._permits = {}


class Replies:
    """Parses the replies to some commands as bytes arrive; for connections with protocol 2 of Redis.

    redis-py reads reply by reply, through layers that cost several times as much as the parsing. Here all received
    bytes are parsed at once, by a separate parser. The connection's own parser never holds a part of a reply.

    Args:
        hiredis: the module.
        count: the number of expected replies.
    """

    __slots__ = ("_count", "_error", "_found", "_is_sound", "_parser")

    def __init__(self, hiredis: Any, count: int) -> None:
        self._parser = hiredis.Reader()
        self._error = hiredis.HiredisError
        self._found: list[Any] = []
        self._count = count
        self._is_sound = True

    def take(self, received: bytes) -> bool:
        """Parse some received bytes; return whether more are expected."""
        found, parser = self._found, self._parser
        if not received:
            return False
        try:
            parser.feed(received)
            next_reply = parser.gets
            # The parser returns False for an incomplete reply. No reply of this protocol is False.
            while (reply := next_reply()) is not False:
                found.append(reply)
        except self._error:
            self._is_sound = False
        return self._is_sound and len(found) < self._count

    def whole(self) -> list[Any] | None:
        """Return the replies; None if their number is wrong, or the bytes could not be parsed."""
        is_whole = self._is_sound and len(self._found) == self._count and not self._parser.has_data()
        return self._found if is_whole else None


def _permits(count: int) -> "SimpleQueue[None]":
    """Return a queue with one permit per connection: a queue in C is several times faster than a semaphore."""
    permits: SimpleQueue[None] = SimpleQueue()
    for _ in range(count):
        permits.put(None)
    return permits


def new_connection(options: RedisOptions, address: Address, *, on_loop: bool = False) -> Any:
    """Return a connection of redis-py, which opens itself with the first command."""
    redis = import_redis()
    module = redis.asyncio.connection if on_loop else redis.connection
    timeout_s = options.timeout_ms / 1_000
    arguments: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": options.database,
        "username": options.username,
        "password": options.password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "socket_keepalive": True,
        "retry": _no_retries(redis, on_loop=on_loop),
        "protocol": 2,
    }
    if options.is_cluster and options.read_from == "replicas":
        arguments["redis_connect_func"] = _allow_reads_of_a_replica_on_loop if on_loop else _allow_reads_of_a_replica
    if options.tls:
        arguments |= {
            "ssl_ca_certs": options.tls_ca_file,
            "ssl_certfile": options.tls_cert_file,
            "ssl_keyfile": options.tls_key_file,
        }
    return (module.SSLConnection if options.tls else module.Connection)(**arguments)


def import_pack() -> Pack:
    """Return the function that encodes a command as bytes."""
    return cast("Pack", import_hiredis().pack_command)


def import_hiredis() -> Any:
    """Return hiredis, the parser of replies; `MissingDependencyError` with the install line if it is missing."""
    try:
        import hiredis
    except ImportError as error:
        raise _missing(error) from error
    return hiredis


def import_redis() -> Any:
    """Return redis-py with its used modules; `MissingDependencyError` with the install line if it is missing."""
    try:
        import redis.asyncio.connection
        import redis.asyncio.retry
        import redis.backoff
        import redis.connection
        import redis.retry
    except ImportError as error:
        raise _missing(error) from error
    return redis


def _missing(error: ImportError) -> MissingDependencyError:
    return MissingDependencyError(
        f"RedisStore needs the packages redis and hiredis ({error}): pip install 'millpond[redis]'"
    )


def _no_retries(redis: Any, *, on_loop: bool) -> Any:
    """Switch off redis-py's retries: `dispatch` retries."""
    kind = redis.asyncio.retry.Retry if on_loop else redis.retry.Retry
    return kind(redis.backoff.NoBackoff(), 0)


def _allow_reads_of_a_replica(connection: Any) -> None:
    connection.on_connect()
    connection.send_command("READONLY")
    connection.read_response()


async def _allow_reads_of_a_replica_on_loop(connection: Any) -> None:
    await connection.on_connect()
    await connection.send_command("READONLY")
    await connection.read_response()
