"""The client for programs on an event loop.

Its methods are those of `FetchClient`, with `await`. Calls for several targets run at the same time.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from millpond.cache import monotonic_ms
from millpond.errors import UnavailableError
from millpond.features import GroupBy
from millpond.features.definitions import Join
from millpond.serving.client.address import Address, address_of, checked_pool_size, tls_context
from millpond.serving.client.conversation import batches_of, name_of
from millpond.serving.client.exchange import Answer, AnswerReader
from millpond.serving.client.steps import NO_ANSWER, FetchSteps, Outcome, Pause, Steps, has_failed, in_order
from millpond.serving.messages import FetchRequest, FetchResponse, feature_names

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")

_PIECE_BYTES = 1 << 16

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncFetchClient:
    """Fetches over HTTP from a server that runs `http_app`; for one event loop. Takes the arguments of `FetchClient`.

    >>> from millpond.kv import MemoryStore
    >>> from millpond.serving import Fetcher, http_app, running_server
    >>> async def ask(url):
    ...     async with AsyncFetchClient(url) as client:
    ...         return await client.fetch_many([])
    >>> with running_server(http_app(Fetcher(MemoryStore(), []))) as url:
    ...     asyncio.run(ask(url))
    []
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

    async def fetch(
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
        return (await self.fetch_many([FetchRequest(name_of(target), keys, at, context, wanted, explain)]))[0]

    async def fetch_many(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Answer the requests in their order; as `FetchClient.fetch_many`."""
        batches = batches_of(requests)
        if len(batches) == 1:
            return await self._run(self._steps.fetch(batches[0]))
        return in_order(batches, await asyncio.gather(*(self._run(self._steps.fetch(batch)) for batch in batches)))

    async def fetch_table(
        self, target: str | GroupBy | Join, table: "pa.Table", *, features: Sequence[str] | None = None
    ) -> "pa.Table":
        """Answer one request per row of keys, and optionally context and `at`; as `fetch_many`."""
        return await self._run(self._steps.fetch_table(name_of(target), table, features))

    async def close(self) -> None:
        """Close the connections. May be called twice."""
        self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, steps: Steps[_T]) -> _T:
        outcome: Outcome = None
        while True:
            try:
                wanted = steps.send(outcome)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            outcome = None
            if isinstance(wanted, Pause):
                await asyncio.sleep(wanted.milliseconds / 1_000)
                continue
            try:
                async with asyncio.timeout(wanted.deadline.left_ms() / 1_000):
                    outcome = await self._send(wanted.request)
            except NO_ANSWER as error:
                outcome = error

    async def _send(self, request: bytes) -> Answer:
        if self._hedge_after_ms is None:
            return await self._pool.exchange(request)
        calls = {asyncio.create_task(self._pool.exchange(request))}
        try:
            done, calls = await asyncio.wait(calls, timeout=self._hedge_after_ms / 1_000)
            if not done:
                calls.add(asyncio.create_task(self._pool.exchange(request)))
            while True:
                for call in sorted(done, key=has_failed):
                    if not has_failed(call) or not calls:
                        return call.result()
                done, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for call in calls:
                call.cancel()


class _Pool:
    """Connections that are kept between calls; the one used last is used first."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, size: int) -> None:
        self._address = address
        self._tls = tls
        self._places = asyncio.Semaphore(checked_pool_size(size))
        self._idle: list[_Streams] = []
        self._closed = False

    async def exchange(self, request: bytes) -> Answer:
        """Send a request over a connection and read its answer."""
        if self._closed:
            raise UnavailableError(f"the client of {self._address.url} is closed.")
        async with self._places:
            streams = await self._take()
            keeps_alive = False
            try:
                answer = await _converse(streams, request)
                keeps_alive = answer.keeps_alive and not self._closed
                return answer
            finally:
                if keeps_alive:
                    self._idle.append(streams)
                else:
                    streams[1].close()

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop()[1].close()

    async def _take(self) -> _Streams:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        name = self._address.host if self._tls else None
        return await asyncio.open_connection(
            self._address.host, self._address.port, ssl=self._tls, server_hostname=name
        )


async def _converse(streams: _Streams, request: bytes) -> Answer:
    reader, writer = streams
    answers = AnswerReader()
    writer.write(request)
    while True:
        answer = answers.feed(await reader.read(_PIECE_BYTES))
        if answer is not None:
            return answer
