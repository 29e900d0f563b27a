"""The fetcher: features of many keys as of a time, from batch rows and tiles, in one call to the store.

Place on the data path: after upload and stream have written to the KV store, before the model.

Invariant: an answer equals `plan.finish` on what the store holds for the key; the cache changes how it is
got, never what it is. Whatever cannot be answered exactly is left out and said in `errors`.

Idea, after CHIP-1: group the requests by GroupBy and key; look into the batch cache first and hold what
was found in a local variable, so that an eviction in between does no harm; then make *one* `get_many`
for everything else, batch rows and tiles together. A GroupBy that asks for batch rows also asks, last
in the same call, for its serving info: if that has moved on, the rows may have been dropped under us,
and "no rows" may not mean "no data", so that GroupBy starts again with the new batch.

Trade-off: tiles are read and decoded on every request. Everything about them is in `gather`, where a
cache of merged complete tiles would go.

What is wrong with the call (an unknown GroupBy, a key of the wrong type) raises before anything is read;
the store failing raises `UnavailableError`; what is wrong with the data of one GroupBy or key is in the
`errors` of its responses, and the others are answered.
"""

import difflib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from millpond.cache import monotonic_ms
from millpond.errors import OptionError, UnavailableError
from millpond.features import GroupByPlan, ServingInfo
from millpond.kv import KVStore
from millpond.serving.batch_cache import CacheSize, batch_cache, sizes_by_name
from millpond.serving.gather import WantedGroup, batch_get, stream_get
from millpond.serving.messages import FetcherStats, FetchRequest, FetchResponse
from millpond.serving.serving_info import ServingInfoCache

_MAX_FLIPS = 3
"""How often one fetch follows a batch that is replaced while it is being read."""


class Fetcher:
    """Answers requests for the features of the GroupBys it has plans of; safe to use from several threads.

    Args:
        store: where uploads and stream write.
        plans: the compiled GroupBys to serve.
        fetcher_cache_size: the batch cache of each GroupBy, in entries (10_000) or bytes ("50MB"), or a
            mapping by name; 0, the default, is none.
        refresh_ms: how old the knowledge of which batch is served may be.
        clock: monotonic milliseconds.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> from millpond.kv import MemoryStore, Put
    >>> plan = compile_group_by(GroupBy("route", keys=(Field("origin", "string"),), inputs=(),
    ...                                 aggregations=(Aggregation("count", windows=("1h", None)),)))
    >>> store, day_ms = MemoryStore(), 86_400_000
    >>> info = ServingInfo("route", plan.definition_hash, day_ms, 7, "route.batch.86400000.7",
    ...                    f"route.stream.{plan.generation}", plan.generation, plan.batch_form, plan.layers)
    >>> key = plan.encode_key(["EWR"])
    >>> batch = plan.batch_ir([(day_ms - 1, ()), (0, ())], day_ms)
    >>> store.put_many(info.batch_dataset, [Put(key, plan.encode_batch(key, batch), day_ms)])
    >>> store.put_many("serving_info", [Put(b"route", info.encode())])
    >>> fetcher = Fetcher(store, [plan], fetcher_cache_size="50MB")
    >>> fetcher.fetch("route", {"origin": "EWR"}, day_ms).features
    {'count_1h': 1, 'count': 2}
    """

    def __init__(
        self,
        store: KVStore,
        plans: Iterable[GroupByPlan],
        *,
        fetcher_cache_size: CacheSize | Mapping[str, CacheSize] = 0,
        refresh_ms: int = 8_000,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._store = store
        self._plans = _by_name(plans)
        sizes = sizes_by_name(fetcher_cache_size, list(self._plans))
        self._caches = {name: batch_cache(name, size) for name, size in sizes.items()}
        self._infos = ServingInfoCache(store, refresh_ms=refresh_ms, clock=clock)
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("requests", "kv_calls", "batch_gets", "stream_gets", "info_gets", "errors"), 0)

    @property
    def plans(self) -> Mapping[str, GroupByPlan]:
        """The plans served, by name of GroupBy."""
        return self._plans

    def fetch(self, target: str, keys: Mapping[str, Any], at: int | None = None) -> FetchResponse:
        """Answer one request; as `fetch_many`."""
        return self.fetch_many([FetchRequest(target, keys, at)])[0]

    def fetch_many(self, requests: Sequence[FetchRequest]) -> list[FetchResponse]:
        """Answer the requests, in their order.

        Raises:
            OptionError: a GroupBy is not served here.
            DataError: a key or a time is missing or not of its declared type.
            UnavailableError: the store failed. Nothing of that is cached; try again.
            CorruptionError: the record that says which batch is served does not decode.
        """
        groups = self._grouped(requests)
        infos = self._infos.get_many([group.plan.name for group in groups])
        for group, info in zip(groups, infos, strict=True):
            group.info = info
        answers: dict[int, FetchResponse] = {}
        for _ in range(_MAX_FLIPS):
            groups = self._answer(groups, requests, answers)
            if not groups:
                break
        else:
            raise UnavailableError(
                f"the batch of {', '.join(group.plan.name for group in groups)} was replaced {_MAX_FLIPS} times "
                "during one fetch. Try again."
            )
        failed = sum(bool(answer.errors) for answer in answers.values())
        self._count(requests=len(requests), errors=failed)
        return [answers[position] for position in range(len(requests))]

    def serving_infos(self) -> dict[str, ServingInfo | None]:
        """Which batch of each GroupBy is served, as `fetch` knows it; None where there is none."""
        names = list(self._plans)
        return dict(zip(names, self._infos.get_many(names), strict=True))

    def refresh(self) -> dict[str, ServingInfo | None]:
        """Read now which batch of each GroupBy is served, and return it; None where there is none."""
        names = list(self._plans)
        return dict(zip(names, self._infos.refresh(names), strict=True))

    def stats(self) -> FetcherStats:
        """The counts since this fetcher was made."""
        with self._lock:
            counts = dict(self._counts)
        counts["kv_calls"] += self._infos.reads
        counts["info_gets"] += self._infos.gets
        return FetcherStats(**counts, caches={name: cache.stats() for name, cache in self._caches.items()})

    def _grouped(self, requests: Sequence[FetchRequest]) -> list[WantedGroup]:
        """The requests by GroupBy and key; all that is wrong with a request is found here, before any reading."""
        groups: dict[str, WantedGroup] = {}
        for position, request in enumerate(requests):
            group = groups.get(request.name)
            if group is None:
                plan = self._plan(request.name)
                group = groups[plan.name] = WantedGroup(plan, self._caches[plan.name])
            group.add(position, request)
        return list(groups.values())

    def _answer(
        self, groups: list[WantedGroup], requests: Sequence[FetchRequest], answers: dict[int, FetchResponse]
    ) -> list[WantedGroup]:
        """Answer what can be; return the groups whose batch was replaced meanwhile, with the new one."""
        readable: list[tuple[WantedGroup, ServingInfo]] = []
        for group in groups:
            refusal = group.refusal()
            if group.info is not None and refusal is None:
                readable.append((group, group.info))
                continue
            for wanted in group.keys.values():
                for position in wanted.positions:
                    answers[position] = group.refused(requests[position], str(refusal))
        self._read(readable)
        replaced = []
        for group, info in readable:
            if group.info != info:
                replaced.append(group)
                continue
            for wanted in group.keys.values():
                for position in wanted.positions:
                    answers[position] = group.respond(info, wanted, requests[position])
        return replaced

    def _read(self, groups: Sequence[tuple[WantedGroup, ServingInfo]]) -> None:
        """Gather batches and tiles of all keys, from the caches and one call; set the info a group has moved on to."""
        missing = [(group, info, group.look_up(info)) for group, info in groups]
        batches = [(group, info, wanted) for group, info, keys in missing for wanted in keys]
        streams = [(group, info, wanted) for group, info in groups for wanted in group.keys.values()]
        asking = [group for group, _, keys in missing if keys]
        gets = [batch_get(info, wanted) for _, info, wanted in batches]
        gets += [stream_get(info, wanted) for _, info, wanted in streams]
        gets += [self._infos.get_of(group.plan.name) for group in asking]
        if not gets:
            return
        self._count(kv_calls=1, batch_gets=len(batches), stream_gets=len(streams), info_gets=len(asking))
        rows = iter(self._store.get_many(gets))
        batch_rows = [next(rows) for _ in batches]
        stream_rows = [next(rows) for _ in streams]
        for group in asking:
            group.info = self._infos.learn(group.plan.name, next(rows))
        for (group, info, wanted), found in zip(batches, batch_rows, strict=True):
            if group.info == info:
                group.take_batch(info, wanted, found)
        for (group, info, wanted), found in zip(streams, stream_rows, strict=True):
            if group.info == info:
                group.take_tiles(wanted, found)

    def _plan(self, name: str) -> GroupByPlan:
        plan = self._plans.get(name)
        if plan is None:
            near = difflib.get_close_matches(str(name), self._plans, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"served are {sorted(self._plans)}."
            raise OptionError(f"no GroupBy {name!r} is served here; {hint}")
        return plan

    def _count(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount


def _by_name(plans: Iterable[GroupByPlan]) -> dict[str, GroupByPlan]:
    named: dict[str, GroupByPlan] = {}
    for plan in plans:
        if not isinstance(plan, GroupByPlan):
            raise OptionError(
                f"a Fetcher takes the plans of its GroupBys, got {plan!r}. Compile a GroupBy with compile_group_by."
            )
        if plan.name in named:
            raise OptionError(f"two plans are named {plan.name!r}. A fetcher serves one definition of each GroupBy.")
        named[plan.name] = plan
    return named
