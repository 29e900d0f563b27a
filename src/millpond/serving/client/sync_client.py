"""The blocking client, for programs with or without threads.

Place on the data path: in the model's process. `fetch`, `fetch_many` and `fetch_table` are called as those of
`Fetcher`, so code can move from in-process to HTTP without a change.

Trade-off: connections are plain sockets with httptools' parser, because a general HTTP client spends more
on a small call than the service does. What such a client adds (redirects, proxies, cookies) a fetch does not
need.
"""

import os
import random
import select
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from millpond.cache import monotonic_ms
from millpond.errors import UnavailableError
from millpond.features import GroupBy
from millpond.features.definitions import Join
from millpond.serving.client.address import Address, address_of, checked_pool_size, tls_context
from millpond.serving.client.conversation import batches_of, name_of
from millpond.serving.client.exchange import Answer, AnswerReader, BrokenAnswerError
from millpond.serving.client.retries import Deadline
from millpond.serving.client.steps import NO_ANSWER, FetchSteps, Outcome, Pause, Steps, has_failed, in_order
from millpond.serving.messages import FetchRequest, FetchResponse, feature_names

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")

_PIECE_BYTES = 1 << 16


class FetchClient:
    """Fetches over HTTP from a server that runs `http_app`; safe to use from several threads, and after a fork.

    Args:
        url: where the service is, as `http://127.0.0.1:8765`.
        api_key: the API key, if the service asks for one.
        timeout_ms: how long one call may take, including retries.
        pool_size: how many connections there are at most; more callers wait for one.
        retries: how often a call is sent again when the server cannot be reached, or says that it may be sent again.
        hedge_after_ms: send a call a second time when its answer takes that long, and take the first answer. None
            never does. Hedging costs the service more, and pays where few answers are very slow.
        ca_file: the certificates to trust in place of the system's, for https.

    >>> from millpond.kv import MemoryStore
    >>> from millpond.serving import Fetcher, http_app, running_server
    >>> with running_server(http_app(Fetcher(MemoryStore(), []))) as url, FetchClient(url) as client:
    ...     client.fetch("route", {}, 0)
    Traceback (most recent call last):
    millpond.errors.OptionError: no GroupBy or Join 'route' is served here; served are [].
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_ms: int = 10_000,
        pool_size: int = 8,
        retries: int = 3,
        hedge_after_ms: int | None = None,
        ca_file: Path | None = None,
        clock: Callable[[], int] = monotonic_ms,
        chance: random.Random | None = None,
    ) -> None:
        address = address_of(url)
        self._steps = FetchSteps(
            address, api_key=api_key, timeout_ms=timeout_ms, retries=retries, clock=clock, chance=chance
        )
        self._pool = _Pool(address, tls_context(address, ca_file), pool_size)
        self._hedge_after_ms = hedge_after_ms
        self._pool_size = pool_size
        self._hedges = self._new_hedges()
        _fork_safe.add(self)

    def fetch(
        self,
        target: str | GroupBy | Join,
        keys: Mapping[str, Any],
        at: int | None = None,
        *,
        context: Mapping[str, Any] | None = None,
        features: Sequence[str] | None = None,
        explain: bool = False,
    ) -> FetchResponse:
        """Answer one request; as `fetch_many`."""
        wanted = None if features is None else feature_names(features)
        return self.fetch_many([FetchRequest(name_of(target), keys, at, context, wanted, explain)])[0]

    def fetch_many(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Answer the requests in their order, with one call for those of one target with the same features.

        Raises what `Fetcher.fetch_many` raises, and `UnavailableError` if the server does not answer.
        """
        batches = batches_of(requests)
        return in_order(batches, [self._run(self._steps.fetch(batch)) for batch in batches])

    def fetch_table(
        self, target: str | GroupBy | Join, table: "pa.Table", *, features: Sequence[str] | None = None
    ) -> "pa.Table":
        """Answer one request per row of keys, and optionally context and `at`; as `fetch_many`."""
        return self._run(self._steps.fetch_table(name_of(target), table, features))

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._pool.close()
        if self._hedges is not None:
            self._hedges.shutdown(wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def after_fork(self) -> None:
        """Leave connections and threads to the parent process: answers to both would come over one connection."""
        self._pool.after_fork()
        self._hedges = self._new_hedges()

    def _new_hedges(self) -> ThreadPoolExecutor | None:
        return None if self._hedge_after_ms is None else ThreadPoolExecutor(2 * self._pool_size, "millpond-hedge")

    def _run(self, steps: Steps[_T]) -> _T:
        outcome: Outcome = None
        while True:
            try:
                wanted = steps.send(outcome)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            outcome = None
            if isinstance(wanted, Pause):
                self._pool.wait(wanted.milliseconds)
                continue
            try:
                outcome = self._send(*wanted)
            except NO_ANSWER as error:
                outcome = error

    def _send(self, request: bytes, deadline: Deadline) -> Answer:
        if self._hedges is None or self._hedge_after_ms is None or self._pool.is_closed:
            return self._pool.exchange(request, deadline)
        first = self._hedges.submit(self._pool.exchange, request, deadline)
        done, _ = wait([first], self._hedge_after_ms / 1_000)
        if done:
            return first.result()
        calls: set[Future[Answer]] = {first, self._hedges.submit(self._pool.exchange, request, deadline)}
        while True:
            done, calls = wait(calls, return_when=FIRST_COMPLETED)
            for call in sorted(done, key=has_failed):
                if not has_failed(call) or not calls:
                    return call.result()


class _Pool:
    """Connections that are kept between calls; the one used last is used first."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, size: int) -> None:
        self._address = address
        self._tls = tls
        self._size = checked_pool_size(size)
        self._places = threading.BoundedSemaphore(size)
        self._idle: list[socket.socket] = []
        self._closed = threading.Event()

    @property
    def is_closed(self) -> bool:
        """Whether the client was closed."""
        return self._closed.is_set()

    def wait(self, pause_ms: int) -> None:
        """Wait; return early if the client is closed meanwhile."""
        self._closed.wait(pause_ms / 1_000)

    def exchange(self, request: bytes, deadline: Deadline) -> Answer:
        """Send a request over a connection and read its answer."""
        if self._closed.is_set():
            raise UnavailableError(f"the client of {self._address.url} is closed.")
        if not self._places.acquire(timeout=deadline.left_ms() / 1_000):
            raise TimeoutError("no connection of the pool became free in time")
        try:
            connection = self._take(deadline)
            try:
                answer = self._converse(connection, request, deadline)
            except BaseException:
                connection.close()
                raise
            if answer.keeps_alive and not self._closed.is_set():
                self._idle.append(connection)
            else:
                connection.close()
            return answer
        finally:
            self._places.release()

    def close(self) -> None:
        self._closed.set()
        while self._idle:
            self._idle.pop().close()

    def after_fork(self) -> None:
        """Begin with an empty pool; the connections stay open in the parent process."""
        was_closed = self._closed.is_set()
        self._places, self._closed = threading.BoundedSemaphore(self._size), threading.Event()
        if was_closed:
            self._closed.set()
        while self._idle:
            self._idle.pop().close()

    def _take(self, deadline: Deadline) -> socket.socket:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            # If something can be read between two calls, it is the end of the connection.
            if not _is_readable(connection):
                return connection
            connection.close()
        connection = socket.create_connection((self._address.host, self._address.port), _seconds(deadline))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return connection
        try:
            return self._tls.wrap_socket(connection, server_hostname=self._address.host)
        except BaseException:
            connection.close()
            raise

    def _converse(self, connection: socket.socket, request: bytes, deadline: Deadline) -> Answer:
        reader = AnswerReader()
        connection.settimeout(_seconds(deadline))
        sending: OSError | None = None
        try:
            connection.sendall(request)
        except OSError as error:
            # A server that refuses a request need not read it whole: its answer may have come already.
            sending = error
        while True:
            connection.settimeout(_seconds(deadline))
            try:
                answer = reader.feed(connection.recv(_PIECE_BYTES))
            except (OSError, BrokenAnswerError) as error:
                raise sending or error from error
            if answer is not None:
                answer.keeps_alive = answer.keeps_alive and sending is None
                return answer


_fork_safe: "weakref.WeakSet[FetchClient]" = weakref.WeakSet()


def _after_fork() -> None:
    for client in _fork_safe:
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _is_readable(connection: socket.socket) -> bool:
    # select.select refuses descriptors above 1,023, which a program with many open files has.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _seconds(deadline: Deadline) -> float:
    left_ms = deadline.left_ms()
    if left_ms == 0:
        raise TimeoutError("the time of the call is over")
    return left_ms / 1_000
