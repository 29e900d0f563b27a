"""How a fetcher asks its store: blocking or awaiting, one key or many.

Place on the data path: between the fetcher's face and the reads. One key of one GroupBy takes the form
for it (`OneKey`), several keys of one GroupBy take theirs (`ManyKeys`); everything else, and whatever the
short ways do not answer, is a `FetchCall`.

Invariant: blocking and async differ only in how they wait. Both have all short ways.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millpond.errors import CorruptionError
from millpond.kv import AsyncKVStore, Get, KVStore, PartlyReadError, TimedValue, async_store
from millpond.kv.async_store import InlineReads
from millpond.serving.counters import SAMPLED_ONE_IN
from millpond.serving.fetch_call import FetchCall, Shared, ShortWays
from millpond.serving.fetch_rounds import run, run_async
from millpond.serving.many_keys import ManyKeys, many_keys
from millpond.serving.messages import FetchRequest, FetchResponse
from millpond.serving.one_key import OneKey
from millpond.serving.prepared import Prepared
from millpond.serving.short_read import ShortRead, ShortResult
from millpond.serving.targets import Targets

if TYPE_CHECKING:
    from millpond.serving.answer_columns import AnswerColumns

Begun = tuple[OneKey, int, ShortRead]
"""What answers, the time, and the short read that was begun."""


class Answerer:
    """Answers the requests of one fetcher; safe to use from several threads.

    Args:
        store: where uploads and streams write.
        shared: what all calls share.
        targets: what is served.
    """

    def __init__(self, store: KVStore, shared: Shared, targets: Targets) -> None:
        self._store = store
        self._async_store: AsyncKVStore | None = None
        self._shared = shared
        self._infos = shared.infos
        self._counters = shared.counters
        self._log = shared.log
        self._now = shared.now
        self._one_key = targets.one_key
        self._fetches = 0

    def one(
        self, name: str, keys: Mapping[str, Any], at: int | None, features: tuple[str, ...] | None
    ) -> FetchResponse:
        """Answer for one key without context or explanation."""
        one = self._one_key.get((name, features))
        if one is None:
            return self._call((FetchRequest(name, keys, at, None, features),), "open")[0]
        answer = self._fetch_one(one, keys, at)
        if answer is None:
            return self._call((FetchRequest(name, keys, at, None, features),), "tried")[0]
        return answer

    def _fetch_one(self, one: OneKey, keys: Mapping[str, Any], at: int | None) -> FetchResponse | None:
        """Answer by a short way; None if the long one is to be taken, which also says what is wrong."""
        self._infos.ensure()
        self._fetches += 1
        if not self._fetches % SAMPLED_ONE_IN:
            return self._timed_one(one, keys, at)
        begun = self._begin(one, keys, at)
        if begun is None:
            return None
        read = begun[2]
        gets = read.gets
        try:
            found = read.end(self._store.get_many(gets) if gets else ())
        except (CorruptionError, PartlyReadError):
            return None  # the long way says what does not decode, and which server did not answer
        return None if found is None else self._confirmed(begun, keys, found)

    def many(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Answer several requests, in their order, with one call of the store for all."""
        if len(requests) > 1:
            many = many_keys(self._shared, self._one_key, requests)
            return self._call(requests, "open") if many is None else self._run(many)
        short_ways: ShortWays = "open"
        one = self._one_of(requests)
        if one is not None:
            answer = self._fetch_one(one, requests[0].keys, requests[0].at)
            if answer is not None:
                return [answer]
            short_ways = "tried"
        return self._call(requests, short_ways)

    def _call(self, requests: Sequence[FetchRequest], short_ways: ShortWays) -> list[FetchResponse]:
        call = FetchCall(self._shared, requests, short_ways=short_ways)
        return self._run(call) if call.wanted else call.responses()

    def _run(self, call: FetchCall | ManyKeys) -> list[FetchResponse]:
        self._infos.ensure()
        self._fetches += 1
        if self._fetches % SAMPLED_ONE_IN:
            run(call.rounds(), self._store.get_many)
            return call.responses()
        began = time.perf_counter()
        run(call.rounds(), self._timed_get_many)
        answers = call.responses()
        self._counters.timed("fetch", time.perf_counter() - began)
        return answers

    def table(
        self, prepared: Prepared, columns: Mapping[str, Sequence[Any]], times: Sequence[int]
    ) -> "AnswerColumns | None":
        """Answer the rows of a table; None if they are to be answered one by one: with derivations, or for a log."""
        if self._log is not None or prepared.derived is not None or any(part.derived for part in prepared.parts):
            return None
        from millpond.serving.table_call import TableCall

        call = TableCall(self._shared, prepared, columns, times)
        if call.wanted:
            self._infos.ensure()
            run(call.rounds(), self._store.get_many)
        return call.answer()

    async def many_async(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Do as `many`, without holding up the event loop."""
        if self._async_store is None:
            self._async_store = async_store(self._store)
        store = self._async_store
        if isinstance(store, InlineReads):
            await self._infos.ensure_async()
            # Such a store does not wait, and then neither does the blocking face.
            return self.many(requests)
        many = many_keys(self._shared, self._one_key, requests) if len(requests) > 1 else None
        if many is not None:
            await self._infos.ensure_async()
            await run_async(many.rounds(), store.get_many)
            return many.responses()
        short_ways: ShortWays = "open"
        one = self._one_of(requests)
        if one is not None:
            answer = await self._one_async(store, one, requests[0])
            if answer is not None:
                return [answer]
            short_ways = "tried"
        call = FetchCall(self._shared, requests, short_ways=short_ways)
        if call.wanted:
            await self._infos.ensure_async()
            await run_async(call.rounds(), store.get_many)
        return call.responses()

    def warm(self, requests: Sequence[FetchRequest]) -> int:
        """Read keys into the caches; give how many were read."""
        call = FetchCall(self._shared, requests, needs_context=False, short_ways="closed")
        if call.wanted:
            self._infos.ensure()
            run(call.rounds(), self._store.get_many)
        return call.warmed()

    def after_fork(self) -> None:
        """Forget the connections of the parent process."""
        self._async_store = None

    def _begin(self, one: OneKey, keys: Mapping[str, Any], at: int | None) -> Begun | None:
        now_ms = self._now()
        if at is None:
            at = now_ms
        elif type(at) is not int:
            return None
        key = one.encode(keys)
        read = None if key is None else one.reader.begin(key, at, now_ms)
        return None if read is None else (one, at, read)

    def _one_of(self, requests: Sequence[FetchRequest]) -> OneKey | None:
        """Give the form for one key, if that is what is asked for."""
        request = requests[0] if len(requests) == 1 else None
        if request is None or request.explain or request.context is not None:
            return None
        return self._one_key.get((request.name, request.features))

    async def _one_async(self, store: AsyncKVStore, one: OneKey, request: FetchRequest) -> FetchResponse | None:
        """Do as `_fetch_one`, without holding up the event loop."""
        await self._infos.ensure_async()
        begun = self._begin(one, request.keys, request.at)
        if begun is None:
            return None
        read = begun[2]
        try:
            found = read.end(await store.get_many(read.gets) if read.gets else ())
        except (CorruptionError, PartlyReadError):
            return None
        if found is None:
            return None
        if found.is_confirmed:
            return self._answer(begun, request.keys, found)
        (rows,) = await store.get_many((self._infos.confirm_get(one.group.name),))
        return self._answer(begun, request.keys, found, rows)

    def _timed_one(self, one: OneKey, keys: Mapping[str, Any], at: int | None) -> FetchResponse | None:
        """Do as `_fetch_one`, and measure the parts."""
        began = time.perf_counter()
        begun = self._begin(one, keys, at)
        if begun is None:
            return None
        read = begun[2]
        try:
            rows = self._timed_get_many(read.gets) if read.gets else ()
            read_s = time.perf_counter()
            found = read.end(rows)
        except (CorruptionError, PartlyReadError):
            return None
        decoded_s = time.perf_counter()
        answer = None if found is None else self._confirmed(begun, keys, found)
        if answer is not None:
            ended_s = time.perf_counter()
            self._counters.timed("decode", decoded_s - read_s)
            self._counters.timed("finish", ended_s - decoded_s)
            self._counters.timed("fetch", ended_s - began)
        return answer

    def _confirmed(self, begun: Begun, keys: Mapping[str, Any], found: ShortResult) -> FetchResponse | None:
        """Answer, after asking whether the batch is still served where its row was absent."""
        if found.is_confirmed:
            return self._answer(begun, keys, found)
        (rows,) = self._store.get_many((self._infos.confirm_get(begun[0].group.name),))
        return self._answer(begun, keys, found, rows)

    def _answer(
        self,
        begun: Begun,
        keys: Mapping[str, Any],
        found: ShortResult,
        info_rows: Sequence[TimedValue] | None = None,
    ) -> FetchResponse | None:
        """Answer and count; None if the serving info that was read after the rows names another batch."""
        one, at, read = begun
        kv_calls = 1 if read.gets else 0
        if info_rows is not None:
            kv_calls += 1
            self._counters.info_get()
            if self._infos.learn(one.group, info_rows).landed is not found.landed:
                return None
        answer = one.answer(keys, at, found, kv_calls)
        if self._log is not None:
            self._log.offer(one.prepared, answer, {})
        return answer

    def _timed_get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        began = time.perf_counter()
        answers = self._store.get_many(gets)
        self._counters.timed("get", time.perf_counter() - began)
        return answers
