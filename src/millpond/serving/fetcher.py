"""The fetcher: features of keys as of a time, from batch rows and tiles, in one call to the store.

Place on the data path: after upload and stream have written to the KV store, before the model.

Invariant: an answer equals `plan.finish` on what the store holds for the key. The caches change how an answer is
found, never what it is. What cannot be answered exactly is left out, and `errors` says why.

This module is the public interface. `targets` knows what is served. `answerer` asks the store: it reads all keys
together (`fetch_rounds`), each by a short read (`short_read`) or a full read (`key_read`), and assembles the
answers (`answers.answer_values`).

An error in the call (an unknown target, a key of the wrong type) raises before anything is read. If the store
fails, `UnavailableError` is raised. A fault in the data of one GroupBy or key is in the `errors` of its answers,
and the others are answered.
"""

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from millpond.cache import monotonic_ms
from millpond.errors import OptionError
from millpond.features import GroupBy, Join, ServingInfo
from millpond.kv import KVStore
from millpond.kv.async_store import reads_may_lag
from millpond.serving.answers.answer_values import Stale
from millpond.serving.answers.answerer import Answerer
from millpond.serving.answers.fetch_call import Shared
from millpond.serving.answers.prepared import Prepared
from millpond.serving.answers.targets import Definition, TargetName, Targets, by_name
from millpond.serving.caches.entry_sizes import batch_row_size, closed_tiles_size
from millpond.serving.caches.waiting_entries import WaitingEntries
from millpond.serving.counters import Counters, FetcherStats, Tally
from millpond.serving.fetcher_stats import fetcher_stats
from millpond.serving.groups.cache_options import CacheBound, CacheSize, Sizes, bounds_of, make_cache
from millpond.serving.groups.cache_recording import recorded_caches, traced_caches
from millpond.serving.groups.landing import hottest_rows, replace_entries
from millpond.serving.groups.served_group import STEPS, ServedGroup
from millpond.serving.groups.serving_info import REFRESH_MS, Background, ServingInfos, on_a_thread
from millpond.serving.landed_batch import LandedBatch
from millpond.serving.messages import FetchRequest, FetchResponse, Target, feature_names, refuse_requests
from millpond.serving.reads.cached_reader import CachedReader

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.serving.answers.answer_log import AnswerLog


def wall_clock_ms() -> int:
    """Return milliseconds since 1970 UTC."""
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
            ``serve-and-flag`` returns them and names them in `errors`.
        warm_keys: how many of the hottest keys of each GroupBy are read anew when a batch lands.
        answer_log: where a sample of the answers is logged.
        hit_rate_curves: whether the caches record their hit-rate curves; with `cache_budget` these also resize them.
        cache_traces: a folder for the traces of the caches: the keys that each was asked for, hashed.
        refresh_ms: the age at which the serving infos are read again.
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
        hit_rate_curves: bool = False,
        cache_traces: Path | str | None = None,
        refresh_ms: int = REFRESH_MS,
        now: Callable[[], int] = wall_clock_ms,
        clock: Callable[[], int] = monotonic_ms,
        background: Background = on_a_thread,
    ) -> None:
        _check_options(steps, tail_freshness_ms, stale, warm_keys)
        self._store = store
        self._now = now
        self._log = answer_log
        self._counters = Counters()
        plans, joins = by_name(definitions)
        bounds = bounds_of(
            plans.values(),
            enable_fetcher_caching=enable_fetcher_caching,
            fetcher_cache_size=fetcher_cache_size,
            fetcher_tile_cache_size=fetcher_tile_cache_size,
            cache_budget=cache_budget,
        )
        waiting = WaitingEntries()
        self._groups = {
            name: ServedGroup(
                plan,
                make_cache(f"{name}.batch", bounds[name].batch, batch_row_size()),
                make_cache(f"{name}.tiles", bounds[name].tiles, closed_tiles_size()),
                steps,
                tail_freshness_ms,
                waiting,
            )
            for name, plan in plans.items()
        }
        _check_reads(store, self._groups.values())
        for group in self._groups.values():
            if group.is_cached and group.has_stream:
                group.short_reader = CachedReader(group, clock)
        self._budget = recorded_caches(self._groups.values(), cache_budget) if hit_rate_curves else None
        self._traces = [] if cache_traces is None else traced_caches(self._groups.values(), Path(cache_traces))
        self._warm_keys = warm_keys
        self._infos = ServingInfos(
            store,
            self._groups,
            refresh_ms=refresh_ms,
            clock=clock,
            background=background,
            on_landing=self._landing,
        )
        self._targets = Targets({**plans, **joins}, self._groups, self._counters)
        shared = Shared(self._targets.prepare, self._infos, self._counters, answer_log, stale, now)
        self._answerer = Answerer(store, shared, self._targets, waiting)
        _fork_safe.add(self)

    @property
    def targets(self) -> Mapping[str, Target]:
        """Every GroupBy and Join that can be asked for, by name."""
        return self._targets.known()

    @property
    def definitions(self) -> Mapping[str, GroupBy | Join]:
        """The definitions of the targets, by name."""
        return self._targets.definitions

    @property
    def cache_bounds(self) -> Mapping[str, CacheBound]:
        """The present bounds of each cache, by its name in the statistics."""
        caches = [cache for group in self._groups.values() for cache in (group.batch_cache, group.tile_cache)]
        return {cache.name: CacheBound(*cache.bounds) for cache in caches if cache is not None}

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
            explain: also say where each value comes from.

        Raises:
            OptionError: the target or a feature is not served here.
            DataError: a key, a context field or the time is missing or not of its declared type.
            UnavailableError: the store failed. Nothing of the failure is cached; try again.
        """
        name = target if type(target) is str else self._targets.name(target)
        wanted = None if features is None else feature_names(features)
        if not explain and context is None:
            return self._answerer.one(name, keys, at, wanted)
        return self._answerer.many((FetchRequest(name, keys, at, context, wanted, explain),))[0]

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
        """Like `fetch`, without blocking the event loop."""
        request = FetchRequest(
            self._targets.name(target),
            keys,
            at,
            context,
            None if features is None else feature_names(features),
            explain,
        )
        return (await self.fetch_many_async((request,)))[0]

    def fetch_many(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Answer several requests, in their order, with one call of the store for all. Raises as `fetch`."""
        try:
            return self._answerer.many(requests)
        except (AttributeError, TypeError) as cause:
            refuse_requests(requests, cause)

    async def fetch_many_async(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Like `fetch_many`, without blocking the event loop."""
        try:
            return await self._answerer.many_async(requests)
        except (AttributeError, TypeError) as cause:
            refuse_requests(requests, cause)

    def fetch_now(self, requests: Sequence[FetchRequest]) -> list[FetchResponse] | None:
        """Like `fetch_many` if that waits for nothing but memory; else return None.

        For event loops: with LMDB or a store in memory, and while the serving info is fresh enough, an answer takes
        less time than to switch tasks.
        """
        return self._answerer.many_now(requests)

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

        The answer has the rows' keys, ``at``, a column for each feature, ``unavailable``: the names of the
        features whose null stands for "not known", and ``errors``: the reasons, by feature or part. A value that
        does not fit its column, such as a sum of decimals over 38 digits, is unavailable. Raises as `fetch`.
        """
        from millpond.serving.answers.answer_table import key_columns, requests_of, table_of, table_of_columns, times_of

        prepared = self.prepare(target, features)
        columns = key_columns(prepared, table)
        times = times_of(prepared, table, self._now() if at is None else at)
        answers = self._answerer.table(prepared, columns, times)
        if answers is None:
            return table_of(prepared, self.fetch_many(requests_of(prepared, columns, times)))
        return table_of_columns(prepared, columns, times, answers)

    def prepare(self, target: TargetName, features: Sequence[str] | None = None) -> Prepared:
        """Resolve a target and the features wanted of it, once for all requests like it."""
        return self._targets.prepare(target, features)

    def warm(self, target: TargetName, keys: Iterable[Mapping[str, Any]]) -> int:
        """Read keys into the caches before they are asked for; return how many were read.

        Raises as `fetch`.
        """
        name, now_ms, warmed = self._targets.name(target), self._now(), 0
        remaining = iter(keys)
        while part := [FetchRequest(name, one, now_ms) for one in islice(remaining, _WARMED_AT_ONCE)]:
            warmed += self._answerer.warm(part)
        return warmed

    def refresh(self) -> dict[str, ServingInfo | None]:
        """Read the serving info of each GroupBy, and return them; None where no batch is served."""
        self._infos.refresh()
        return self._infos.infos()

    async def refresh_async(self) -> dict[str, ServingInfo | None]:
        """Like `refresh`, without blocking the event loop."""
        await asyncio.to_thread(self._infos.refresh)
        return self._infos.infos()

    def serving_infos(self) -> dict[str, ServingInfo | None]:
        """Return the serving info of each GroupBy as known without waiting; None where no batch is served."""
        return self._infos.infos()

    def stats(self) -> FetcherStats:
        """Return the counts since this fetcher was made."""
        dropped = 0 if self._log is None else self._log.dropped
        return fetcher_stats(self._counters, self._infos, self._groups, self._now(), dropped)

    def close(self) -> None:
        """Write what the answer log and the traces hold. The store stays open. May be called twice."""
        if self._budget is not None:
            self._budget.close()
        for trace in self._traces:
            trace.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _landing(self, group: ServedGroup, landed: LandedBatch, in_request: bool) -> Callable[[], None]:
        """Read the hottest keys of a batch before it is served; return what to do once it is."""
        if not group.is_cached or group.served.landed is None:
            return lambda: None
        rows = {} if in_request else hottest_rows(group, landed, self._store, self._warm_keys)
        tally = Tally()
        tally.warmed = len(rows)
        self._counters.add(tally)
        return lambda: replace_entries(group, landed, rows)

    def after_fork(self) -> None:
        """Forget the work of the parent process's threads, which do not exist in this process."""
        if self._budget is not None:
            self._budget.start()
        if self._log is not None:
            self._log.after_fork()
        self._infos.after_fork()
        self._answerer.after_fork()
        for group in self._groups.values():
            group.flights.clear()


_fork_safe: "weakref.WeakSet[Fetcher]" = weakref.WeakSet()


def _after_fork() -> None:
    for fetcher in _fork_safe:
        fetcher.after_fork()


os.register_at_fork(after_in_child=_after_fork)

_WARMED_AT_ONCE = 500
"""How many keys `warm` reads in one call of the store."""


def _check_reads(store: KVStore, groups: Iterable[ServedGroup]) -> None:
    cached = [group.name for group in groups if group.is_cached]
    if cached and reads_may_lag(store):
        raise OptionError(
            f"{store!r} reads from replicas, and the GroupBys {cached} are cached. A cache would keep what a replica "
            "did not have yet until the next batch lands. Open the store with read_from='primary', or serve with "
            "enable_fetcher_caching=False."
        )


def _check_options(steps: Collection[str], tail_freshness_ms: int, stale: str, warm_keys: int) -> None:
    unknown = [step for step in steps if step not in STEPS]
    if unknown or isinstance(steps, str):
        raise OptionError(f"steps is {steps!r}; its parts are {list(STEPS)}.")
    if stale not in ("refuse", "serve-and-flag"):
        raise OptionError(f"stale is {stale!r}; it is 'refuse' or 'serve-and-flag'.")
    for option, value in (("tail_freshness_ms", tail_freshness_ms), ("warm_keys", warm_keys)):
        if type(value) is not int or value < 0:
            raise OptionError(f"{option} is {value!r}; a whole number of 0 or more is needed.")
