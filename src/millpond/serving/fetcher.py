"""The fetcher: features of keys as of a time, from batch rows and tiles, in one call to the store.

Place on the data path: after upload and stream have written to the KV store, before the model.

Invariant: an answer equals `plan.finish` on what the store holds for the key; the caches change how it is
got, never what it is. Whatever cannot be answered exactly is left out and said in `errors`.

A fetch resolves its target and features once (`prepared`), reads all keys together (`fetch_rounds`,
`key_read`) and puts the answers together (`answers`). One key of one GroupBy that finds all but its tail
in the caches takes a shorter way to the same answer (`hot_key`).

What is wrong with the call (an unknown target, a key of the wrong type) raises before anything is read;
the store failing raises `UnavailableError`; what is wrong with the data of one GroupBy or key is in the
`errors` of its answers, and the others are answered.
"""

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from millpond.cache import CacheStats, monotonic_ms
from millpond.errors import CorruptionError, OptionError
from millpond.features import GroupBy, GroupByPlan, Join, ServingInfo, compile_group_by
from millpond.kv import AsyncKVStore, Get, KVStore, TimedValue, async_store
from millpond.kv.async_store import InlineReads
from millpond.serving.answers import Stale
from millpond.serving.cache_options import CacheSize, Sizes, bounds_of, make_cache
from millpond.serving.counters import SAMPLED_ONE_IN, Counters, FetcherStats, Freshness, Tally, process_bytes
from millpond.serving.entry_sizes import batch_row_size, closed_tiles_size
from millpond.serving.fetch_call import FetchCall, Shared
from millpond.serving.fetch_rounds import run, run_async
from millpond.serving.hot_key import HotFetch, HotTarget, tail_get
from millpond.serving.landed_batch import LandedBatch
from millpond.serving.landing import hottest_rows, replace_entries
from millpond.serving.messages import FetchRequest, FetchResponse, Target
from millpond.serving.plain_key import PlainTarget
from millpond.serving.prepared import Prepared, ResolvedTarget
from millpond.serving.served_group import NEVER_MS, STEPS, ServedGroup
from millpond.serving.serving_info import REFRESH_MS, Background, ServingInfos, on_a_thread
from millpond.suggestions import hint

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.serving.answer_log import AnswerLog

HotRead = tuple[HotTarget, int, Get, HotFetch]
"""What answers, the time, what to read, and the key that was looked up."""

Definition = GroupByPlan | GroupBy | Join
TargetName = str | GroupBy | Join


def wall_clock_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - requests that name no time mean now


class Fetcher:
    """Answers requests for the features of GroupBys and Joins; safe to use from several threads.

    Args:
        store: where uploads and streams write.
        definitions: what is served: GroupBys (or their plans) and Joins. The GroupBys of a Join can be asked
            for too.
        enable_fetcher_caching: overrides the definitions' own.
        fetcher_cache_size: the cache of batch rows of each GroupBy, in entries (10_000) or bytes ("50MB"), or
            a mapping by name; overrides the definitions' own. 0 is none.
        fetcher_tile_cache_size: the cache of closed tiles, likewise.
        cache_budget: bytes that all caches may take together, such as "2GB".
        steps: which steps of CHIP-1 are on, of ``batch_ir``, ``batch_get``, ``tile_ir``, ``stream_get``.
        tail_freshness_ms: how long ago open tiles may have been read; 0 reads them for every fetch.
        stale: ``refuse`` leaves out features whose window the batch is too old to answer exactly;
            ``serve-and-flag`` gives them and names them in `errors`.
        warm_keys: how many of the hottest keys of each GroupBy are read anew when a batch lands.
        answer_log: where a sample of the answers is logged.
        refresh_ms: the age at which the knowledge of what is served is read again.
        now: milliseconds UTC, for requests that give no time.
        clock: monotonic milliseconds.
        background: runs a refresh beside the callers.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> from millpond.kv import MemoryStore, Put
    >>> route = GroupBy("route", keys=(Field("origin", "string"),),
    ...                 aggregations=(Aggregation("count", windows=("1h", None)),))
    >>> plan, store, day_ms = compile_group_by(route), MemoryStore(), 86_400_000
    >>> info = ServingInfo("route", plan.definition_hash, day_ms, 7, "route.batch.86400000.7", "route.stream",
    ...                    plan.generation, plan.batch_form)
    >>> key, batch = plan.encode_key(["EWR"]), plan.batch_ir([(day_ms - 1, ()), (0, ())], day_ms)
    >>> store.put_many(info.batch_dataset, [Put(key, plan.encode_batch(key, batch), day_ms)])
    >>> store.put_many("serving_info", [Put(b"route", info.encode())])
    >>> fetcher = Fetcher(store, [route], fetcher_cache_size="50MB")
    >>> fetcher.fetch(route, {"origin": "EWR"}, at=day_ms).features
    {'count_1h': 1, 'count': 2}
    """

    def __init__(
        self,
        store: KVStore,
        definitions: Iterable[Definition],
        *,
        enable_fetcher_caching: bool | None = None,
        fetcher_cache_size: Sizes = None,
        fetcher_tile_cache_size: Sizes = None,
        cache_budget: CacheSize | None = None,
        steps: Collection[str] = STEPS,
        tail_freshness_ms: int = 0,
        stale: Stale = "refuse",
        warm_keys: int = 1_000,
        answer_log: "AnswerLog | None" = None,
        refresh_ms: int = REFRESH_MS,
        now: Callable[[], int] = wall_clock_ms,
        clock: Callable[[], int] = monotonic_ms,
        background: Background = on_a_thread,
    ) -> None:
        _check_options(steps, tail_freshness_ms, stale, warm_keys)
        self._store = store
        self._async_store: AsyncKVStore | None = None
        self._now = now
        self._clock = clock
        self._log = answer_log
        self._counters = Counters()
        plans, joins = _by_name(definitions)
        bounds = bounds_of(
            plans.values(),
            enable_fetcher_caching=enable_fetcher_caching,
            fetcher_cache_size=fetcher_cache_size,
            fetcher_tile_cache_size=fetcher_tile_cache_size,
            cache_budget=cache_budget,
        )
        self._groups = {
            name: ServedGroup(
                plan,
                make_cache(f"{name}.batch", bounds[name].batch, batch_row_size()),
                make_cache(f"{name}.tiles", bounds[name].tiles, closed_tiles_size()),
                steps,
                tail_freshness_ms,
            )
            for name, plan in plans.items()
        }
        self._warm_keys = warm_keys
        self._infos = ServingInfos(
            store,
            self._groups,
            refresh_ms=refresh_ms,
            clock=clock,
            background=background,
            on_landing=self._landing,
        )
        self._shared = Shared(self.prepare, self._infos, self._counters, answer_log, stale, now)
        self._resolved = {name: ResolvedTarget(one, self._groups) for name, one in (plans | joins).items()}
        self._definitions: dict[str, Any] = {name: plan.group_by for name, plan in plans.items()} | joins
        self._prepared: dict[tuple[str, tuple[str, ...] | None], Prepared] = {}
        self._hot: dict[tuple[str, tuple[str, ...] | None], HotTarget] = {}
        self._plain: dict[tuple[str, tuple[str, ...] | None], PlainTarget] = {}
        self._fetches = 0
        _fork_safe.add(self)

    @property
    def targets(self) -> Mapping[str, Target]:
        """Every GroupBy and Join that may be asked for, by name."""
        return {name: resolved.target for name, resolved in self._resolved.items()}

    @property
    def groups(self) -> tuple[ServedGroup, ...]:
        """The GroupBys that are read, with their caches."""
        return tuple(self._groups.values())

    def fetch(
        self,
        target: TargetName,
        keys: Mapping[str, Any],
        at: int | None = None,
        *,
        context: Mapping[str, Any] | None = None,
        features: Sequence[str] | None = None,
        explain: bool = False,
    ) -> FetchResponse:
        """Answer for one key.

        Args:
            target: a GroupBy or Join, or its name.
            keys: the parts of the key by name; a key with a None in it has no features.
            at: the time in milliseconds UTC; None is now.
            context: fields known only at query time, by name.
            features: the features wanted, in this order; None for all.
            explain: also tell where each value comes from.

        Raises:
            OptionError: the target or a feature is not served here.
            DataError: a key, a context field or the time is missing or not of its declared type.
            UnavailableError: the store failed. Nothing of that is cached; try again.
        """
        name = target if type(target) is str else self._name(target)
        wanted = None if features is None else tuple(features)
        if not explain and context is None:
            answer = self._hot_fetch(name, keys, at, wanted)
            if answer is not None:
                return answer
        return self._fetch_many((FetchRequest(self._name(name), keys, at, context, wanted, explain),))[0]

    async def fetch_async(
        self,
        target: TargetName,
        keys: Mapping[str, Any],
        at: int | None = None,
        *,
        context: Mapping[str, Any] | None = None,
        features: Sequence[str] | None = None,
        explain: bool = False,
    ) -> FetchResponse:
        """Do as `fetch`, without holding up the event loop."""
        request = FetchRequest(
            self._name(target), keys, at, context, None if features is None else tuple(features), explain
        )
        return (await self.fetch_many_async((request,)))[0]

    def fetch_many(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Answer several requests, in their order, with one call of the store for all. Raises as `fetch`."""
        if len(requests) == 1:
            request = requests[0]
            if not request.explain and request.context is None:
                answer = self._hot_fetch(request.name, request.keys, request.at, request.features)
                if answer is not None:
                    return [answer]
        else:
            found = self._hot_reads(requests)
            if found:
                self._infos.ensure()
                answers = self._hot_answers(requests, found, self._store.get_many([one[2] for one in found]))
                if answers is not None:
                    return answers
        return self._fetch_many(requests)

    def _hot_reads(self, requests: Sequence[FetchRequest]) -> list[HotRead]:
        """Give what to read if every key goes the short way; else nothing."""
        found: list[HotRead] = []
        now_ms = self._now()
        for request in requests:
            hot = self._hot.get((request.name, request.features))
            if hot is None or request.explain or request.context is not None:
                return []
            at = now_ms if request.at is None else request.at
            begun = hot.begin(request.keys, at) if type(at) is int else None
            if begun is None:
                return []
            found.append((hot, at, tail_get(begun[2], begun[1]), begun))
        return found

    def _hot_answers(
        self, requests: Sequence[FetchRequest], found: Sequence[HotRead], rows: Sequence[list[TimedValue]]
    ) -> list[FetchResponse] | None:
        """Answer from the rows of all tails; None if one key is to go the long way."""
        answers = []
        with suppress(CorruptionError):
            for number, (request, (hot, at, _, begun), tail) in enumerate(zip(requests, found, rows, strict=True)):
                answer = hot.end(request.keys, at, begun, tail, calls=number == 0)
                if answer is None:
                    return None
                self._logged(hot, answer)
                answers.append(answer)
            return answers
        return None

    def _fetch_many(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        call = FetchCall(self._shared, requests)
        if call.wanted:
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
        return call.responses()

    def _timed_get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        began = time.perf_counter()
        answers = self._store.get_many(gets)
        self._counters.timed("get", time.perf_counter() - began)
        return answers

    async def fetch_many_async(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Do as `fetch_many`, without holding up the event loop."""
        if self._async_store is None:
            self._async_store = async_store(self._store)
        if isinstance(self._async_store, InlineReads):
            # Such a store does not wait, and then neither does the blocking face, which has the shorter ways.
            await self._infos.ensure_async()
            return self.fetch_many(requests)
        if len(requests) == 1:
            request = requests[0]
            hot = self._hot.get((request.name, request.features))
            if hot is not None and not request.explain and request.context is None:
                await self._infos.ensure_async()
                at = self._now() if request.at is None else request.at
                found = hot.begin(request.keys, at) if type(at) is int else None
                if found is not None:
                    answer = hot.recent(request.keys, at, found)
                    if answer is None:
                        with suppress(CorruptionError):
                            (rows,) = await self._async_store.get_many((tail_get(found[2], found[1]),))
                            answer = hot.end(request.keys, at, found, rows)
                    if answer is not None:
                        self._logged(hot, answer)
                        return [answer]
        elif reads := self._hot_reads(requests):
            await self._infos.ensure_async()
            answers = self._hot_answers(requests, reads, await self._async_store.get_many([one[2] for one in reads]))
            if answers is not None:
                return answers
        call = FetchCall(self._shared, requests)
        if call.wanted:
            await self._infos.ensure_async()
            await run_async(call.rounds(), self._async_store.get_many)
        return call.responses()

    def _hot_fetch(
        self, name: str, keys: Mapping[str, Any], at: int | None, features: tuple[str, ...] | None
    ) -> FetchResponse | None:
        """Answer by the short way; None if the long one is to be taken, which also says what is wrong."""
        hot = self._hot.get((name, features))
        if hot is None:
            return self._plain_fetch(name, keys, at, features)
        self._infos.ensure()
        if at is None:
            at = self._now()
        elif type(at) is not int:
            return None
        self._fetches += 1
        began = time.perf_counter() if not self._fetches % SAMPLED_ONE_IN else 0.0
        found = hot.begin(keys, at)
        if found is None:
            return None
        answer = hot.recent(keys, at, found)
        if answer is None:
            # A tile that does not decode is told by the long way.
            with suppress(CorruptionError):
                asked = time.perf_counter() if began else 0.0
                (rows,) = self._store.get_many((tail_get(found[2], found[1]),))
                if began:
                    self._counters.timed("get", time.perf_counter() - asked)
                answer = hot.end(keys, at, found, rows, is_timed=began > 0)
        if answer is not None:
            self._logged(hot, answer)
            if began:
                self._counters.timed("fetch", time.perf_counter() - began)
        return answer

    def _plain_fetch(
        self, name: str, keys: Mapping[str, Any], at: int | None, features: tuple[str, ...] | None
    ) -> FetchResponse | None:
        """Answer by the short way without caches; None if the long one is to be taken."""
        plain = self._plain.get((name, features))
        if plain is None:
            return None
        self._infos.ensure()
        if at is None:
            at = self._now()
        elif type(at) is not int:
            return None
        found = plain.begin(keys, at)
        if found is None:
            return None
        answer = None
        # A row that does not decode is told by the long way.
        with suppress(CorruptionError):
            answer = plain.end(keys, at, found, self._store.get_many(found[3]))
        if answer is not None:
            self._logged(plain, answer)
        return answer

    def _logged(self, hot: HotTarget | PlainTarget, answer: FetchResponse) -> None:
        if self._log is not None:
            self._log.offer(hot.prepared, answer, {})

    def fetch_table(
        self,
        target: TargetName,
        table: "pa.Table",
        *,
        at: int | None = None,
        features: Sequence[str] | None = None,
    ) -> "pa.Table":
        """Answer one request for each row of a table, as a table.

        Args:
            target: a GroupBy or Join, or its name.
            table: the key columns, those of the context, and, if there is one, ``at``: milliseconds UTC.
            at: the time of rows that have none of their own; None is now.
            features: the features wanted; None for all.

        The answer has the rows' keys, ``at``, a column for each feature, and ``unavailable``: the names of the
        features whose null stands for "not known". Raises as `fetch`.
        """
        from millpond.serving.answer_table import requests_of, table_of

        prepared = self.prepare(target, features)
        requests = requests_of(prepared, table, self._now() if at is None else at)
        return table_of(prepared, self.fetch_many(requests))

    def prepare(self, target: TargetName, features: Sequence[str] | None = None) -> Prepared:
        """Resolve a target and the features wanted of it, once for all requests like it."""
        name = self._name(target)
        wanted = None if features is None else tuple(features)
        prepared = self._prepared.get((name, wanted))
        if prepared is None:
            prepared = self._resolved[name].prepare(wanted)
            if len(self._prepared) < _MOST_PREPARED:
                self._prepared[name, wanted] = prepared
                part = prepared.single
                if part is not None and part.derived is None and part.layout is not None:
                    if part.group.is_hot:
                        self._hot[name, wanted] = HotTarget(prepared, part, self._counters, self._clock)
                    elif not part.group.is_cached:
                        self._plain[name, wanted] = PlainTarget(prepared, part, part.layout, self._counters)
        return prepared

    def warm(self, target: TargetName, keys: Iterable[Mapping[str, Any]]) -> int:
        """Read keys into the caches before they are asked for; give how many were read.

        Raises as `fetch`.
        """
        name, now_ms, warmed = self._name(target), self._now(), 0
        remaining = iter(keys)
        while part := [FetchRequest(name, one, now_ms) for one in islice(remaining, _WARMED_AT_ONCE)]:
            call = FetchCall(self._shared, part, needs_context=False)
            if call.wanted:
                self._infos.ensure()
                run(call.rounds(), self._store.get_many)
            warmed += call.warmed()
        return warmed

    def refresh(self) -> dict[str, ServingInfo | None]:
        """Read now which batch of each GroupBy is served, and return it; None where there is none."""
        self._infos.refresh()
        return self._infos.infos()

    async def refresh_async(self) -> dict[str, ServingInfo | None]:
        """Do as `refresh`, without holding up the event loop."""
        await asyncio.to_thread(self._infos.refresh)
        return self._infos.infos()

    def serving_infos(self) -> dict[str, ServingInfo | None]:
        """Which batch of each GroupBy is served, as far as is known without waiting; None where none is."""
        return self._infos.infos()

    def stats(self) -> FetcherStats:
        """The counts since this fetcher was made."""
        sums = self._counters.sums()
        sums["kv_calls"] += self._infos.reads
        sums["info_gets"] += self._infos.gets
        now_ms = self._now()
        freshness = {name: _freshness(group, now_ms) for name, group in self._groups.items()}
        caches: dict[str, CacheStats] = {}
        for name, group in self._groups.items():
            for kind, cache in (("batch", group.batch_cache), ("tiles", group.tile_cache)):
                if cache is not None:
                    caches[f"{name}.{kind}"] = cache.stats()
        return FetcherStats(
            **sums,
            refreshes=self._infos.refreshes,
            refresh_failures=self._infos.failures,
            late_batches=sum(one.is_late for one in freshness.values()),
            log_dropped=0 if self._log is None else self._log.dropped,
            caches=caches,
            freshness=freshness,
            latencies=self._counters.latencies(),
            process_bytes=process_bytes(),
        )

    def close(self) -> None:
        """Write what the answer log holds. The store stays open. May be called twice."""
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _landing(self, group: ServedGroup, landed: LandedBatch, in_request: bool) -> Callable[[], None]:
        """Read the hottest keys of a batch before it is served; give what is to be done once it is."""
        if not group.is_cached or group.served.landed is None:
            return lambda: None
        rows = {} if in_request else hottest_rows(group, landed, self._store, self._warm_keys)
        tally = Tally()
        tally.warmed = len(rows)
        self._counters.add(tally)
        return lambda: replace_entries(group, landed, rows)

    def after_fork(self) -> None:
        """Forget what the threads of the parent process were about: they do not exist in this one."""
        self._infos.after_fork()
        self._async_store = None
        for group in self._groups.values():
            group.flights.clear()

    def _name(self, target: TargetName) -> str:
        if isinstance(target, str):
            name = target
        else:
            name = target.name
            known = self._definitions.get(name, target)
            if known is not target and known != target:
                raise OptionError(f"{name!r} is served here in another definition than the one asked for")
        if name not in self._resolved:
            raise OptionError(f"no GroupBy or Join {name!r} is served here; {hint(name, sorted(self._resolved))}")
        return name


_fork_safe: "weakref.WeakSet[Fetcher]" = weakref.WeakSet()


def _after_fork() -> None:
    for fetcher in _fork_safe:
        fetcher.after_fork()


os.register_at_fork(after_in_child=_after_fork)

_WARMED_AT_ONCE = 500
"""How many keys `warm` reads in one call of the store."""

_MOST_PREPARED = 10_000
"""How many sets of features are remembered: a caller that makes them up must not fill the memory."""


def _freshness(group: ServedGroup, now_ms: int) -> Freshness:
    served = group.served
    landed = served.landed
    closing_age = None if served.closed_ms == NEVER_MS else now_ms - served.closed_ms
    if landed is None:
        return Freshness(closing_age_ms=closing_age)
    return Freshness(
        now_ms - landed.batch_end_ms,
        now_ms - landed.info.batch_landing_ms,
        closing_age,
        now_ms > landed.horizon_end_ms,
    )


def _by_name(definitions: Iterable[Definition]) -> tuple[dict[str, GroupByPlan], dict[str, Join]]:
    plans: dict[str, GroupByPlan] = {}
    joins: dict[str, Join] = {}
    for one in definitions:
        if isinstance(one, Join):
            if one.name in plans or joins.setdefault(one.name, one) != one:
                raise OptionError(f"two definitions are named {one.name!r}. A fetcher serves one of each name.")
            for part in one.parts:
                _add(plans, joins, part.group_by)
        elif isinstance(one, GroupBy | GroupByPlan):
            _add(plans, joins, one)
        else:
            raise OptionError(f"a Fetcher takes GroupBys, their plans, and Joins, got {one!r}.")
    return plans, joins


def _add(plans: dict[str, GroupByPlan], joins: Mapping[str, Join], one: GroupBy | GroupByPlan) -> None:
    group_by = one.group_by if isinstance(one, GroupByPlan) else one
    known = plans.get(group_by.name)
    if group_by.name in joins or (known is not None and known.group_by != group_by):
        raise OptionError(f"two definitions are named {group_by.name!r}. A fetcher serves one of each name.")
    if known is None:
        plans[group_by.name] = one if isinstance(one, GroupByPlan) else compile_group_by(one)


def _check_options(steps: Collection[str], tail_freshness_ms: int, stale: str, warm_keys: int) -> None:
    unknown = [step for step in steps if step not in STEPS]
    if unknown or isinstance(steps, str):
        raise OptionError(f"steps is {steps!r}; its parts are {list(STEPS)}.")
    if stale not in ("refuse", "serve-and-flag"):
        raise OptionError(f"stale is {stale!r}; it is 'refuse' or 'serve-and-flag'.")
    for option, value in (("tail_freshness_ms", tail_freshness_ms), ("warm_keys", warm_keys)):
        if type(value) is not int or value < 0:
            raise OptionError(f"{option} is {value!r}; a whole number of 0 or more is needed.")
