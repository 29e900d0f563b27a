"""Answers the requests of a fetcher: chooses how to read the store, blocking or on an event loop.

Place on the data path: between `Fetcher`, which users call, and the reads of the store. One request for a GroupBy
or Join is answered by a form prepared for it (`OneKey`, `OneJoin`). Several requests that differ only in their keys
are answered together (`ManyKeys`). These use short reads, each for one common case (`short_read`). Every other
request is answered by `FetchCall`, and so is every request that a short read cannot answer.

Invariant: the blocking and async calls differ only in how they wait. Both use all short reads.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millpond.errors import CorruptionError
from millpond.features.stored.rows import MAX_QUERY_MS
from millpond.kv import AsyncKVStore, Get, KVStore, PartlyReadError, TimedValue, async_store
from millpond.kv.async_store import reads_inline
from millpond.serving.answers.fetch_call import FetchCall, Shared, ShortWays
from millpond.serving.answers.many_keys import ManyKeys, many_keys
from millpond.serving.answers.one_join import JoinRead, JoinResult, OneJoin
from millpond.serving.answers.one_key import OneKey
from millpond.serving.answers.prepared import Prepared
from millpond.serving.answers.targets import Targets
from millpond.serving.caches.waiting_entries import WaitingEntries
from millpond.serving.counters import SAMPLED_ONE_IN
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.messages import FetchRequest, FetchResponse
from millpond.serving.reads.fetch_rounds import run, run_async
from millpond.serving.reads.short_read import ShortRead, ShortResult

if TYPE_CHECKING:
    from millpond.serving.answers.answer_columns import AnswerColumns

Form = OneKey | OneJoin
"""Answers one request."""

Begun = tuple[Any, int, ShortRead | JoinRead]
"""The form, the query time, and the short read in progress."""


class Answerer:
    """Answers the requests of one fetcher; safe to use from several threads.

    Args:
        store: the store that uploads and streams write to.
        shared: the state that all calls share.
        targets: the GroupBys and Joins that are served.
        waiting: the entries that wait to be put into full caches.
    """

    def __init__(self, store: KVStore, shared: Shared, targets: Targets, waiting: WaitingEntries) -> None:
        self._store = store
        self._waiting = waiting
        self._puts = waiting.puts
        self._async_store: AsyncKVStore | None = None
        self._is_inline = reads_inline(store)
        self._shared = shared
        self._infos = shared.infos
        self._counters = shared.counters
        self._log = shared.log
        self._now = shared.now
        self._forms = targets.forms
        self._fetches = 0

    def one(
        self, name: str, keys: Mapping[str, Any], at: int | None, features: tuple[str, ...] | None
    ) -> FetchResponse:
        """Answer one request without context or explanation."""
        form = self._forms.get((name, features))
        if form is None:
            return self._call((FetchRequest(name, keys, at, None, features),), "open")[0]
        answer = self._fetch_one(form, keys, at, features)
        if answer is None:
            return self._call((FetchRequest(name, keys, at, None, features),), "tried")[0]
        return answer

    def _fetch_one(
        self, form: Form, keys: Mapping[str, Any], at: int | None, features: tuple[str, ...] | None
    ) -> FetchResponse | None:
        """Answer with a short read; None if `FetchCall` must answer, which also reports errors."""
        self._infos.ensure()
        self._fetches += 1
        is_timed = not self._fetches % SAMPLED_ONE_IN
        began = time.perf_counter() if is_timed else 0.0
        begun = self._begin(form, keys, at, features)
        if begun is None:
            return None
        if isinstance(begun, FetchCall):
            run(begun.rounds(), self._store.get_many)
            return begun.responses()[0]
        if is_timed:
            return self._timed_one(begun, keys, began)
        _, at, read = begun
        found, gets = None, read.gets
        try:
            found = read.end(self._store.get_many(gets) if gets else ())
        except (CorruptionError, PartlyReadError):
            return None  # `FetchCall` reports what does not decode, and which server did not answer
        finally:
            if found is None:
                read.close()
        if found is None:
            return None
        if found.is_confirmed and self._log is None:
            answer: FetchResponse = form.answer(keys, at, found, 1 if gets else 0)  # type: ignore[arg-type]  # its own
            if self._puts:
                self._waiting.put_after_fetch(misses_nothing=len(gets) <= form.parts)
            return answer
        return self._confirmed(begun, keys, found)

    def many(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Answer several requests, in their order, reading the store for all of them together."""
        if len(requests) > 1:
            many = many_keys(self._shared, self._forms, requests)
            return self._call(requests, "open") if many is None else self._run(many, len(requests))
        short_ways: ShortWays = "open"
        form = self._form_of(requests)
        if form is not None:
            answer = self._fetch_one(form, requests[0].keys, requests[0].at, requests[0].features)
            if answer is not None:
                return [answer]
            short_ways = "tried"
        return self._call(requests, short_ways)

    def _call(self, requests: Sequence[FetchRequest], short_ways: ShortWays) -> list[FetchResponse]:
        call = FetchCall(self._shared, requests, short_ways=short_ways)
        return self._run(call, len(requests)) if call.wanted else call.responses()

    def _run(self, call: FetchCall | ManyKeys, requests: int) -> list[FetchResponse]:
        self._infos.ensure()
        self._fetches += 1
        if self._fetches % SAMPLED_ONE_IN:
            run(call.rounds(), self._store.get_many)
            self._waiting.put_some(requests)
            return call.responses()
        began = time.perf_counter()
        run(call.rounds(), self._timed_get_many)
        self._waiting.put_some(requests)
        answers = call.responses()
        self._counters.timed("fetch", time.perf_counter() - began)
        return answers

    def table(
        self, prepared: Prepared, columns: Mapping[str, Sequence[Any]], times: Sequence[int]
    ) -> "AnswerColumns | None":
        """Answer the rows of a table as columns.

        None if the rows must be answered one by one: the target has derivations, or there is an answer log.
        """
        if self._log is not None or prepared.derived is not None or any(part.derived for part in prepared.parts):
            return None
        from millpond.serving.answers.table_call import TableCall

        call = TableCall(self._shared, prepared, columns, times)
        if call.wanted:
            self._infos.ensure()
            run(call.rounds(), self._store.get_many)
            self._waiting.put_some(len(times))
        return call.answer()

    async def many_async(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Like `many`, without blocking the event loop."""
        if self._is_inline:
            await self._infos.ensure_async()
            # Such a store never waits, so the blocking call does not either.
            return self.many(requests)
        store = self._async_store
        if store is None:
            store = self._async_store = async_store(self._store)
        many = many_keys(self._shared, self._forms, requests) if len(requests) > 1 else None
        if many is not None:
            await self._infos.ensure_async()
            await run_async(many.rounds(), store.get_many)
            self._waiting.put_some(len(requests))
            return many.responses()
        short_ways: ShortWays = "open"
        form = self._form_of(requests)
        if form is not None:
            answer = await self._one_async(store, form, requests[0])
            if answer is not None:
                return [answer]
            short_ways = "tried"
        call = FetchCall(self._shared, requests, short_ways=short_ways)
        if call.wanted:
            await self._infos.ensure_async()
            await run_async(call.rounds(), store.get_many)
            self._waiting.put_some(len(requests))
        return call.responses()

    def many_now(self, requests: Sequence[FetchRequest]) -> list[FetchResponse] | None:
        """Like `many` if nothing must be waited for; else None.

        Nothing is waited for if the store reads without a thread and the serving infos are known.
        """
        return self.many(requests) if self._is_inline and not self._infos.must_wait() else None

    def warm(self, requests: Sequence[FetchRequest]) -> int:
        """Read keys into the caches. Return how many were read."""
        call = FetchCall(self._shared, requests, needs_context=False, short_ways="closed")
        if call.wanted:
            self._infos.ensure()
            run(call.rounds(), self._store.get_many)
        return call.warmed()

    def after_fork(self) -> None:
        """Drop the async store, and with it the connections of the parent process."""
        self._async_store = None

    def _begin(
        self, form: Form, keys: Mapping[str, Any], at: int | None, features: tuple[str, ...] | None
    ) -> "Begun | FetchCall | None":
        """Begin a short read.

        Return a `FetchCall` if some parts of a Join have no short read; it goes on with the reads that were begun.
        Return None if `FetchCall` must do all of the work.
        """
        now_ms = self._now()
        if at is None:
            at = now_ms
        elif type(at) is not int or at >= MAX_QUERY_MS:
            return None
        read = form.begin(keys, at, now_ms)
        if type(read) is list:
            request = FetchRequest(form.prepared.target.name, keys, at, None, features)
            return FetchCall(self._shared, (request,), short_ways="tried", now_ms=now_ms, begun=read)
        return None if read is None else (form, at, read)  # type: ignore[return-value]  # the list is above

    def _form_of(self, requests: Sequence[FetchRequest]) -> Form | None:
        """Return the form for a single request without context or explanation, if there is one."""
        request = requests[0] if len(requests) == 1 else None
        if request is None or request.explain or request.context is not None:
            return None
        features = request.features
        return (
            None if features is not None and type(features) is not tuple else self._forms.get((request.name, features))
        )

    async def _one_async(self, store: AsyncKVStore, form: Form, request: FetchRequest) -> FetchResponse | None:
        """Like `_fetch_one`, without blocking the event loop."""
        await self._infos.ensure_async()
        begun = self._begin(form, request.keys, request.at, request.features)
        if begun is None:
            return None
        if isinstance(begun, FetchCall):
            await run_async(begun.rounds(), store.get_many)
            return begun.responses()[0]
        read, found = begun[2], None
        try:
            found = read.end(await store.get_many(read.gets) if read.gets else ())
        except (CorruptionError, PartlyReadError):
            return None
        finally:
            if found is None:
                read.close()
        if found is None:
            return None
        if found.is_confirmed:
            return self._answer(begun, request.keys, found)
        unconfirmed = form.unconfirmed(found)  # type: ignore[arg-type]  # a form takes what its own reads found
        gets = [self._infos.confirm_get(group.name) for group, _ in unconfirmed]
        try:
            rows = await store.get_many(gets)
        except PartlyReadError:
            return None
        return self._answer(begun, request.keys, found) if self._is_confirmed(unconfirmed, rows) else None

    def _timed_one(self, begun: Begun, keys: Mapping[str, Any], began: float) -> FetchResponse | None:
        """Finish `_fetch_one`, and time its steps."""
        read, found = begun[2], None
        try:
            rows = self._timed_get_many(read.gets) if read.gets else ()
            read_s = time.perf_counter()
            found = read.end(rows)
        except (CorruptionError, PartlyReadError):
            return None
        finally:
            if found is None:
                read.close()
        decoded_s = time.perf_counter()
        answer = None if found is None else self._confirmed(begun, keys, found)
        if answer is not None:
            ended_s = time.perf_counter()
            self._counters.timed("decode", decoded_s - read_s)
            self._counters.timed("finish", ended_s - decoded_s)
            self._counters.timed("fetch", ended_s - began)
        return answer

    def _confirmed(
        self, begun: Begun, keys: Mapping[str, Any], found: ShortResult | JoinResult
    ) -> FetchResponse | None:
        """Answer; where a batch row was absent, first check that its batch is still served."""
        if found.is_confirmed:
            return self._answer(begun, keys, found)
        unconfirmed = begun[0].unconfirmed(found)
        try:
            rows = self._store.get_many([self._infos.confirm_get(group.name) for group, _ in unconfirmed])
        except PartlyReadError:
            return None
        return self._answer(begun, keys, found) if self._is_confirmed(unconfirmed, rows) else None

    def _is_confirmed(
        self, unconfirmed: Sequence[tuple[ServedGroup, ShortResult]], rows: Sequence[Sequence[TimedValue]]
    ) -> bool:
        """Return whether the serving infos that were read after the rows name the same batches.

        If so, put what was read into the caches. A GroupBy that is several parts of a Join is checked once for each.
        """
        for (group, found), info_rows in zip(unconfirmed, rows, strict=True):
            self._counters.info_get()
            if self._infos.learn(group, info_rows).landed is not found.landed:
                return False
        for _, found in unconfirmed:
            if found.on_confirmed is not None:
                found.on_confirmed()
        return True

    def _answer(self, begun: Begun, keys: Mapping[str, Any], found: ShortResult | JoinResult) -> FetchResponse:
        """Make the answer, count it, and offer it to the answer log."""
        form, at, read = begun
        kv_calls = (1 if read.gets else 0) + (not found.is_confirmed)
        answer: FetchResponse = form.answer(keys, at, found, kv_calls)
        if self._puts:
            self._waiting.put_after_fetch(misses_nothing=len(read.gets) <= form.parts)
        if self._log is not None:
            self._log.offer(form.prepared, answer, {})
        return answer

    def _timed_get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        began = time.perf_counter()
        answers = self._store.get_many(gets)
        self._counters.timed("get", time.perf_counter() - began)
        return answers
