"""What `chip1` and `serving` fetch from: ten GroupBys over four kinds of keys, a batch, and a stream.

Two kinds of keys are asked for by Zipf's law (s = 1.1), two uniformly. Half of the GroupBys have tiles of
five minutes, half of an hour. The stream is written up to a moment, as the real one would have by then:
closed tiles of all layers, open ones, and the closing time.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate

from millpond.features import (
    CLOSING_KEY,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Aggregation,
    ClosingTime,
    Field,
    GroupBy,
    GroupByPlan,
    Ir,
    Join,
    JoinPart,
    ServingInfo,
    Tile,
    batch_dataset,
    compile_group_by,
    encode_closing_time,
    stream_dataset,
    tile_address,
)
from millpond.features.stored.value_codec import VALUE_FORMAT_VERSION
from millpond.features.stored.value_header import HEADER, with_header
from millpond.kv import KVStore, Put

BATCH_END_MS = 19_000 * DAY_MS
EXPONENT = 1.1
KINDS = ("user", "merchant", "card", "device")
SKEWED = ("user", "merchant")
_PUTS = 2_000
_PATTERNS = 50
_LATENESS_MS = 5 * MINUTE_MS
"""How far behind the present the stream closes tiles."""


def group_bys(cache_entries: int = 0) -> list[GroupBy]:
    """Ten GroupBys: three of users and of merchants, two of cards and of devices."""
    made = []
    for number in range(10):
        kind = KINDS[(0, 0, 0, 1, 1, 1, 2, 2, 3, 3)[number]]
        short = ("1h", "6h") if number % 2 else ("1d",)
        made.append(
            GroupBy(
                f"{kind}_{number}",
                keys=(Field(kind, "string"),),
                inputs=(Field("amount", "double"), Field("items", "long")),
                aggregations=(
                    Aggregation("count", windows=(*short, "7d")),
                    Aggregation("average", "amount", windows=(*short, "30d")),
                    Aggregation("sum", "items", windows=("7d", "30d")),
                    Aggregation("max", "amount", windows=("30d",)),
                ),
                fetcher_cache_size=cache_entries or None,
                fetcher_tile_cache_size=cache_entries or None,
            )
        )
    return made


def join(name: str, parts: Sequence[GroupBy]) -> Join:
    """A Join of some of them."""
    return Join(name, parts=tuple(JoinPart(part) for part in parts))


class World:
    """The data of some GroupBys in one store.

    Args:
        store: where it lies.
        definitions: the GroupBys.
        keys: how many keys there are of each kind.
        share_of_tiles: of the spans of time, how many have an event of a key.
        written_ms: until when the stream was written before.
    """

    def __init__(
        self,
        store: KVStore,
        definitions: Sequence[GroupBy],
        keys: int,
        share_of_tiles: float = 0.3,
        written_ms: int = BATCH_END_MS,
    ) -> None:
        self.store = store
        self.plans = [compile_group_by(one) for one in definitions]
        self.keys = keys
        self._share_of_tiles = share_of_tiles
        self._written_ms = {plan.name: plan_start(plan, written_ms) for plan in self.plans}

    def land(self, landing_ms: int = 1, *, shift: float = 0.0) -> None:
        """Write a batch of every GroupBy, and point to it."""
        for plan in self.plans:
            dataset = batch_dataset(plan.name, BATCH_END_MS, landing_ms)
            self.store.create(dataset, rows="one")
            self.store.bulk_put(dataset, self._batch_rows(plan, shift))
            info = ServingInfo(
                plan.name,
                plan.definition_hash,
                BATCH_END_MS,
                landing_ms,
                dataset,
                stream_dataset(plan.name, plan.generation),
                plan.generation,
                plan.batch_form,
                plan.layers,
            )
            self.store.put_many("serving_info", [Put(plan.name.encode(), info.encode())])

    def stream_until(self, now_ms: int) -> None:
        """Write what the stream would have written by now, since it was last written."""
        for plan in self.plans:
            dataset = stream_dataset(plan.name, plan.generation)
            closed_ms = (now_ms - _LATENESS_MS) // plan.tile_ms * plan.tile_ms
            puts: list[Put] = []
            for put in self._tiles(plan, now_ms, closed_ms):
                puts.append(put)
                if len(puts) == _PUTS:
                    self.store.put_many(dataset, puts)
                    puts = []
            closing = encode_closing_time(ClosingTime(0, 1, closed_ms))
            self.store.put_many(dataset, [*puts, Put(CLOSING_KEY, closing, 0)])
            self._written_ms[plan.name] = closed_ms

    def _batch_rows(self, plan: GroupByPlan, shift: float) -> Iterator[Put]:
        draw = random.Random(11)
        events = [
            [
                (BATCH_END_MS - draw.randrange(30 * DAY_MS), (draw.randrange(10_000) / 100 + shift, draw.randrange(9)))
                for _ in range(40)
            ]
            for _ in range(50)
        ]
        bodies = [_body(plan.encode_batch(b"", plan.batch_ir(some, BATCH_END_MS))) for some in events]
        for key, number in self._encoded(plan):
            stored = with_header(VALUE_FORMAT_VERSION, bodies[number % len(bodies)], b"batch" + key)
            yield Put(key, stored, BATCH_END_MS)

    def _tiles(self, plan: GroupByPlan, now_ms: int, closed_ms: int) -> Iterator[Put]:
        """Of most spans of time each key has a tile. Keys share their events with every fiftieth other."""
        first_ms = self._written_ms[plan.name]
        patterns = []
        for pattern in range(_PATTERNS):
            rows = []
            for layer, start_ms, ir in self._irs(plan, pattern, first_ms, now_ms, closed_ms):
                size = plan.layers[layer]
                tile = Tile(start_ms, size, start_ms + size <= closed_ms, 0, ir)
                rows.append((_body(plan.encode_tile(b"", tile)), tile_address(layer, start_ms)))
            patterns.append(rows)
        for key, number in self._encoded(plan):
            for body, address in patterns[number % _PATTERNS]:
                yield Put(key, with_header(VALUE_FORMAT_VERSION, body, key), address)

    def _irs(
        self, plan: GroupByPlan, pattern: int, first_ms: int, now_ms: int, closed_ms: int
    ) -> list[tuple[int, int, Ir]]:
        """The layer, start and IR of each tile of one pattern."""
        found: list[tuple[int, int, Ir]] = []
        for layer, size in enumerate(plan.layers):
            last_ms = now_ms if layer == 0 else closed_ms // size * size
            for start_ms in range(first_ms // size * size, last_ms, size):
                small = range(start_ms, start_ms + size, plan.tile_ms)
                irs = [ir for one in small if (ir := _ir(plan, pattern, one, self._share_of_tiles)) is not None]
                if irs:
                    found.append((layer, start_ms, plan.merge_all(irs)))
        return found

    def _encoded(self, plan: GroupByPlan) -> Iterator[tuple[bytes, int]]:
        kind = plan.group_by.keys[0].name
        for number in range(self.keys):
            key = plan.encode_key([key_name(kind, number)])
            if key is not None:
                yield key, number


def plan_start(plan: GroupByPlan, written_ms: int) -> int:
    """Where the tiles begin that a stream which was written until a moment has not closed."""
    return max(BATCH_END_MS, (written_ms - _LATENESS_MS) // plan.tile_ms * plan.tile_ms)


def _body(stored: bytes) -> bytes:
    """The body behind the header, which alone differs from key to key."""
    return stored[HEADER.size :]


def key_name(kind: str, number: int) -> str:
    """The name of a key."""
    return f"{kind}-{number:07d}"


def _ir(plan: GroupByPlan, pattern: int, start_ms: int, share: float) -> Ir | None:
    """What happened in one smallest tile; None in most of them."""
    draw = random.Random(f"{pattern} {start_ms}")
    if draw.random() > share:
        return None
    return plan.collect([start_ms], [(draw.randrange(10_000) / 100, draw.randrange(9))])


class Asked:
    """Draws the keys of requests: skewed kinds by Zipf's law, the others uniformly."""

    def __init__(self, keys: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._keys = keys
        self._weights = list(accumulate((rank + 1) ** -EXPONENT for rank in range(keys)))

    def number(self, kind: str) -> int:
        """The number of a key of a kind."""
        if kind in SKEWED:
            return self._random.choices(range(self._keys), cum_weights=self._weights)[0]
        return self._random.randrange(self._keys)

    def keys(self, kinds: Sequence[str]) -> dict[str, str]:
        """One key of each kind."""
        return {kind: key_name(kind, self.number(kind)) for kind in kinds}


__all__ = ["BATCH_END_MS", "HOUR_MS", "KINDS", "SKEWED", "Asked", "World", "group_bys", "join", "key_name"]
