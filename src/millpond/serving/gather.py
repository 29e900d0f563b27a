"""What one fetch gathers, by GroupBy and key: which rows it needs, and what they decode to.

Place on the data path: between the fetcher, which talks to the store, and the plan, which computes. The
batch part goes through the cache; the streaming part is `stream_get` and `take_tiles`, and nothing else
knows how tiles are got, so a cache of merged complete tiles has its place there.

Invariant: a batch that was found in the cache is held here until the answer is made, so an eviction in
between does no harm; and what did not decode is a `problem` of its key, never an absence.
"""

from collections.abc import Sequence
from typing import cast

from millpond.cache import Cache
from millpond.errors import CorruptionError, DataError, OptionError
from millpond.features import HORIZON_MS, BatchIr, GroupByPlan, ServingInfo, Tile
from millpond.kv import Get, TimedValue
from millpond.serving.batch_cache import BatchKey, CachedBatch
from millpond.serving.messages import FetchRequest, FetchResponse, ValueState

_HOUR_MS = 3_600_000


class WantedKey:
    """One key of one GroupBy in one fetch, for all requests that ask for it."""

    __slots__ = ("batch_ir", "end_ms", "key", "positions", "problem", "tiles")

    def __init__(self, key: bytes, end_ms: int) -> None:
        self.key = key
        self.end_ms = end_ms
        self.positions: list[int] = []
        self.batch_ir: BatchIr | None = None
        self.tiles: Sequence[Tile] = ()
        self.problem: str | None = None


class WantedGroup:
    """One GroupBy in one fetch: its keys in the order they were first asked for, and the batch that answers."""

    __slots__ = ("cache", "info", "keys", "plan")

    def __init__(self, plan: GroupByPlan, cache: Cache[BatchKey, CachedBatch]) -> None:
        self.plan = plan
        self.cache = cache
        self.info: ServingInfo | None = None
        self.keys: dict[bytes, WantedKey] = {}

    def add(self, position: int, request: FetchRequest) -> None:
        """Take a request in; `DataError` if its key or time is not as declared."""
        if type(request.at) is not int:
            raise DataError(
                f"GroupBy {self.plan.name!r}: at is {request.at!r}; whole milliseconds since 1970 UTC are needed."
            )
        key = self.plan.encode_key(request.keys)
        if key is None:
            raise DataError(f"GroupBy {self.plan.name!r}: the key {request.keys!r} has a null part")
        wanted = self.keys.get(key)
        if wanted is None:
            wanted = self.keys[key] = WantedKey(key, query_time(request))
        wanted.positions.append(position)
        wanted.end_ms = max(wanted.end_ms, query_time(request))

    def refusal(self) -> str | None:
        """Why no key of this GroupBy can be answered, if so."""
        if self.info is None:
            return f"GroupBy {self.plan.name!r}: no batch has been uploaded. Run its upload first."
        if self.info.batch_form != self.plan.batch_form:
            return (
                f"GroupBy {self.plan.name!r}: the batch was written under definition {self.info.definition_hash}, "
                f"this fetcher serves definition {self.plan.definition_hash}. Upload again, or serve with the "
                "definition of the upload."
            )
        return None

    def look_up(self, info: ServingInfo) -> list[WantedKey]:
        """Take from the cache what it has of the batch, and return the keys whose batch row must be read."""
        missing = []
        for wanted in self.keys.values():
            cached = self.cache.get(_batch_key(info, wanted.key))
            if cached is None:
                missing.append(wanted)
            else:
                wanted.batch_ir = cached.ir
        return missing

    def take_batch(self, info: ServingInfo, wanted: WantedKey, rows: Sequence[TimedValue]) -> None:
        """Decode a batch row, or note its absence, and cache either."""
        try:
            wanted.batch_ir = self.plan.decode_batch(wanted.key, rows[0].value) if rows else None
        except CorruptionError as error:
            wanted.problem = str(error)
        else:
            row_bytes = len(rows[0].value) if rows else 0
            self.cache.put(_batch_key(info, wanted.key), CachedBatch(wanted.batch_ir, row_bytes))

    def take_tiles(self, wanted: WantedKey, rows: Sequence[TimedValue]) -> None:
        """Decode the tiles of a key."""
        try:
            wanted.tiles = [self.plan.decode_tile(wanted.key, row.value) for row in rows]
        except CorruptionError as error:
            wanted.problem = str(error)

    def respond(self, info: ServingInfo, wanted: WantedKey, request: FetchRequest) -> FetchResponse:
        """Make the answer to one request from what was gathered for its key."""
        if wanted.problem is not None:
            return self.refused(request, wanted.problem)
        query_ms = query_time(request)
        try:
            features = self.plan.finish(query_ms, info.batch_end_ms, wanted.batch_ir, wanted.tiles)
        except (DataError, OptionError) as cause:
            return self.refused(request, str(cause))
        states: dict[str, ValueState] = {name: "null" for name, value in features.items() if value is None}
        errors = {}
        if query_ms > info.batch_end_ms + HORIZON_MS:
            for name in self.plan.stale_features(query_ms, info.batch_end_ms):
                del features[name]
                states[name] = "unavailable"
                errors[name] = self._too_old(info, query_ms)
        return FetchResponse(request.name, request.keys, query_ms, features, states, errors, info.batch_end_ms)

    def refused(self, request: FetchRequest, error: str) -> FetchResponse:
        """The answer to a request none of whose features can be told."""
        batch_end_ms = None if self.info is None else self.info.batch_end_ms
        states: dict[str, ValueState] = dict.fromkeys(self.plan.feature_names, "unavailable")
        return FetchResponse(
            request.name, request.keys, query_time(request), {}, states, {self.plan.name: error}, batch_end_ms
        )

    def _too_old(self, info: ServingInfo, query_ms: int) -> str:
        hours = (query_ms - info.batch_end_ms) // _HOUR_MS
        return (
            f"GroupBy {self.plan.name!r}: the batch ends {hours} hours before query_ms {query_ms} and answers "
            f"all windows for {HORIZON_MS // _HOUR_MS}. Upload a newer batch."
        )


def query_time(request: FetchRequest) -> int:
    """The time a request asks for; `add` has seen that it is one."""
    return cast("int", request.at)


def batch_get(info: ServingInfo, wanted: WantedKey) -> Get:
    """The get of a key's batch row."""
    return Get(info.batch_dataset, wanted.key, info.batch_end_ms, info.batch_end_ms + 1)


def stream_get(info: ServingInfo, wanted: WantedKey) -> Get:
    """The get of a key's tiles from the batch end up to the latest request for it."""
    return Get(info.streaming_dataset, wanted.key, info.batch_end_ms, wanted.end_ms)


def _batch_key(info: ServingInfo, key: bytes) -> BatchKey:
    return (info.batch_dataset, key, info.batch_end_ms, info.batch_landing_ms)
