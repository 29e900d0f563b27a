"""Which batch of each GroupBy is served, as far as this process knows.

Place on the data path: asked first by every fetch, because the batch end splits a window into its batch
and its streaming part. A fetch whose batch rows are all cached asks the store for no batch, and so would
never hear of a new one: hence the refresh by age, 8 seconds as in Chronon [1].

Invariant: an entry is a `ServingInfo` that was current at some moment of the last `refresh_ms`, or the
absence of one. A failed read is neither: it raises, and nothing is remembered of it.

Trade-off: for up to `refresh_ms` an older batch answers, from its own rows and all tiles after its own
end, which is as right as the new one. If its rows were dropped meanwhile, the fetcher notices, because
it reads the serving info again behind the rows (`learn`).

[1] CHIP-1, "Keeping GroupByServingInfo up-to-date"
"""

from collections.abc import Callable, Sequence

import msgspec

from millpond.cache import monotonic_ms
from millpond.errors import OptionError
from millpond.features import SERVING_INFO_DATASET, ServingInfo, serving_info_key
from millpond.kv import Get, KVStore, TimedValue


class _Known(msgspec.Struct, frozen=True):
    """What was read of one GroupBy, and when by the cache's clock."""

    raw: bytes | None
    info: ServingInfo | None
    read_ms: int


class ServingInfoCache:
    """Serving infos by name of GroupBy.

    - Key: the name of the GroupBy.
    - Capacity: one entry for each GroupBy asked for; a fetcher asks only for those it has plans of.
    - Freshness: an entry is read again when it is `refresh_ms` old by `clock`, an absence too.
    - Concurrent miss: each thread reads for itself; the last to come back stays.

    >>> from millpond.kv import MemoryStore, Put
    >>> store = MemoryStore()
    >>> infos = ServingInfoCache(store, refresh_ms=8_000, clock=lambda: 0)
    >>> infos.get_many(["route"])
    [None]
    >>> info = ServingInfo("route", "c0ffee", 0, 1, "route.batch.0.1", "route.stream.1")
    >>> store.put_many("serving_info", [Put(b"route", info.encode())])
    >>> infos.get_many(["route"]), infos.refresh(["route"]) == [info]
    ([None], True)
    """

    def __init__(self, store: KVStore, *, refresh_ms: int = 8_000, clock: Callable[[], int] = monotonic_ms) -> None:
        if refresh_ms < 0:
            raise OptionError(f"refresh_ms is {refresh_ms}; an age in milliseconds, 0 or more, is needed.")
        self._store = store
        self._refresh_ms = refresh_ms
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self.reads = 0
        self.gets = 0

    def get_many(self, names: Sequence[str]) -> list[ServingInfo | None]:
        """The serving info of each GroupBy, None where nothing was uploaded; reads those too old, in one call.

        Raises `UnavailableError` if the store fails, `CorruptionError` if a record does not decode.
        """
        now_ms = self._clock()
        due = [name for name in names if not self._is_fresh(name, now_ms)]
        if due:
            self.refresh(due)
        return [self._known[name].info for name in names]

    def refresh(self, names: Sequence[str]) -> list[ServingInfo | None]:
        """Read the serving infos now, whatever their age."""
        answers = self._store.get_many([self.get_of(name) for name in names])
        self.reads += 1
        self.gets += len(names)
        return [self.learn(name, rows) for name, rows in zip(names, answers, strict=True)]

    def get_of(self, name: str) -> Get:
        """The get that reads the record of one GroupBy, to be sent along with others; `learn` takes its answer."""
        return Get(SERVING_INFO_DATASET, serving_info_key(name))

    def learn(self, name: str, rows: Sequence[TimedValue]) -> ServingInfo | None:
        """Take what a store answered to `get_of`, and return what is known by that."""
        raw = rows[-1].value if rows else None
        before = self._known.get(name)
        if before is not None and before.raw == raw:
            info = before.info
        else:
            info = None if raw is None else ServingInfo.decode(raw)
        self._known[name] = _Known(raw, info, self._clock())
        return info

    def _is_fresh(self, name: str, now_ms: int) -> bool:
        known = self._known.get(name)
        return known is not None and now_ms - known.read_ms < self._refresh_ms
