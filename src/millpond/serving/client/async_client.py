"""The client for programs on an event loop.

As `FetchClient`, with `await`. Calls of several targets run at the same time.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from millpond.cache import monotonic_ms
from millpond.errors import OptionError, UnavailableError
from millpond.features import GroupBy
from millpond.features.definitions import Join
from millpond.serving.client.conversation import Address, Batch, Conversation, address_of, batches_of
from millpond.serving.client.exchange import Answer, AnswerReader, BrokenAnswerError
from millpond.serving.client.retries import Deadline, Retries
from millpond.serving.client.sync_client import name_of, tls_context
from millpond.serving.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_BYTES = 1 << 16

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncFetchClient:
    """Fetches over HTTP from a server that runs `http_app`; for one event loop. Its arguments are `FetchClient`'s.

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
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._retries = Retries(retries, chance or random.Random())
        self._conversation = Conversation(address, api_key)
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
        wanted = None if features is None else tuple(features)
        return (await self.fetch_many([FetchRequest(name_of(target), keys, at, context, wanted, explain)]))[0]

    async def fetch_many(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Answer the requests in their order; as `FetchClient.fetch_many`."""
        batches = batches_of(requests)
        if len(batches) == 1:
            return await self._fetch(batches[0])
        answers: dict[int, FetchResponse] = {}
        for batch, responses in zip(batches, await asyncio.gather(*map(self._fetch, batches)), strict=True):
            answers.update(zip(batch.positions, responses, strict=True))
        return [answers[position] for position in range(len(requests))]

    async def fetch_table(
        self, target: str | GroupBy | Join, table: "pa.Table", *, features: Sequence[str] | None = None
    ) -> "pa.Table":
        """Answer one request per row of keys, and if wanted context and `at`; as `fetch_many`."""
        request = self._conversation.ask_for_table(name_of(target), table, features)
        return self._conversation.table(await self._call(request, Deadline(self._timeout_ms, self._clock)))

    async def close(self) -> None:
        """Close the connections. May be called twice."""
        self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _fetch(self, batch: Batch) -> list[FetchResponse]:
        conversation, deadline = self._conversation, Deadline(self._timeout_ms, self._clock)
        answer = await self._call(conversation.ask(batch), deadline)
        if not conversation.knows_types(batch, answer):
            conversation.learn_types(await self._call(conversation.ask_for_types(batch.name), deadline))
        return conversation.responses(batch, answer)

    async def _call(self, request: bytes, deadline: Deadline) -> Answer:
        """Send a request, again where that may help, and give the last answer."""
        sent = 0
        while True:
            sent += 1
            answer: Answer | None = None
            failure: BaseException | None = None
            try:
                async with asyncio.timeout(deadline.left_ms() / 1_000):
                    answer = await self._send(request)
            except (OSError, BrokenAnswerError) as error:  # a TimeoutError is an OSError
                failure = error
            if answer is not None and not self._conversation.may_retry(answer):
                return answer
            retry_after = None if answer is None else answer.headers.get("retry-after")
            pause_ms = self._retries.pause_ms(sent=sent, retry_after=retry_after, left_ms=deadline.left_ms())
            if pause_ms is None:
                if answer is None:
                    raise self._conversation.unreachable(failure or TimeoutError()) from failure
                return answer
            await asyncio.sleep(pause_ms / 1_000)

    async def _send(self, request: bytes) -> Answer:
        if self._hedge_after_ms is None:
            return await self._pool.exchange(request)
        calls = {asyncio.create_task(self._pool.exchange(request))}
        try:
            done, calls = await asyncio.wait(calls, timeout=self._hedge_after_ms / 1_000)
            if not done:
                calls.add(asyncio.create_task(self._pool.exchange(request)))
            while True:
                for call in done:
                    if call.exception() is None or not calls:
                        return call.result()
                done, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for call in calls:
                call.cancel()


class _Pool:
    """Connections that are kept between calls, the one used last first."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, size: int) -> None:
        if type(size) is not int or size < 1:
            raise OptionError(f"pool_size is {size!r}; a whole number from 1 on is needed.")
        self._address = address
        self._tls = tls
        self._places = asyncio.Semaphore(size)
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
