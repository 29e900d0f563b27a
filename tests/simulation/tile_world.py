"""A stream of tiles, its store and a fetcher with caches, with one seed for what fails where and who asks when.

The processor, the writer of tiles and the fetcher are the real ones. Simulated are Spark's checkpoint (what the
processor keeps, copied), its partitions, the store's failures and the clock. A write to the store may fail before or
after any row; a row after which it failed is there all the same.

Invariant of the world, which is Spark's: a batch whose writing failed runs again from the same state.
"""

import copy
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from millpond.errors import UnavailableError
from millpond.features import HOUR_MS, stream_dataset
from millpond.kv import MemoryStore
from millpond.serving import Fetcher
from millpond.spark.features.tiles.combine import EventCounts
from millpond.spark.features.tiles.processor import TileProcessor
from millpond.spark.features.tiles.slots import CLOSING_SLOT
from millpond.spark.features.tiles.writer import tile_writer
from tests.features import oracle
from tests.serving.world import upload
from tests.spark.features.arrow_states import OneShard, blobs_of
from tests.spark.features.test_tile_processor import GROUP_BY, PLAN, TILE_MS, B, part

ORIGINS = ["JFK", "EWR"]
KEYS = {origin: PLAN.encode_key((origin,)) for origin in ORIGINS}
Event = tuple[int, tuple[float]]


class FaultyStore(MemoryStore):
    """Fails before or after a row of a write, as the seed says."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw = draw
        self.failing = False

    def put_many(self, dataset: str, puts: Any) -> None:
        for put in puts:
            fails = self.draw.random() < 0.05 if self.failing else False
            landed = self.draw.random() < 0.5
            if not fails or landed:
                super().put_many(dataset, [put])
            if fails:
                raise UnavailableError("the store went away")


class Updates:
    """What a batch emitted, as the writer asks Spark for it: partitions by key, in any order."""

    def __init__(self, rows: list[dict[str, Any]], draw: random.Random) -> None:
        keys = sorted({row["key"] or b"" for row in rows})
        draw.shuffle(keys)
        self.partitions = [[row for row in rows if (row["key"] or b"") == key] for key in keys]
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))

    def coalesce(self, _: int) -> "Updates":
        return self

    def mapInArrow(self, write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> "Updates":
        self._write = write
        return self

    def collect(self) -> list[Any]:
        counted = []
        for rows in self.partitions:
            packed = blobs_of(pa.Table.from_pylist(rows, _ROWS))
            counted += [row for batch in self._write(iter([packed])) for row in batch.to_pylist()]
        return [type("Counted", (), row) for row in counted]


_ROWS = pa.schema(
    [
        ("key", pa.binary()),
        ("address", pa.int64()),
        ("value", pa.binary()),
        ("change", pa.int32()),
        ("amount", pa.int64()),
    ]
)


class TileWorld:
    """One stream, batch by batch, with a fetcher that asks in between.

    Args:
        seed: of everything.
        batches: how many.
        writer: what makes the function that writes a batch.
    """

    def __init__(self, seed: int, batches: int = 6, writer: Callable[..., Any] = tile_writer) -> None:
        self.draw = random.Random(seed)
        self.store = FaultyStore(self.draw)
        before = [(B - self.draw.randrange(40 * HOUR_MS) - 1, (float(number),)) for number in range(3)]
        self.events: dict[str, list[Event]] = {"JFK": list(before), "EWR": []}
        upload(self.store, PLAN, {("JFK",): before}, B)
        self.shard = OneShard(TileProcessor(GROUP_BY))
        self.dataset = stream_dataset(PLAN.name, PLAN.generation)
        self.store.create(self.dataset, rows="many")
        self.put = writer(self.dataset, PLAN.name, self.store, EventCounts())
        self.now_ms = B
        self.fetcher = Fetcher(
            self.store, [GROUP_BY], enable_fetcher_caching=True, refresh_ms=0, now=lambda: self.now_ms
        )
        self.batches = batches
        self.watermark_ms = B
        self.answers: list[tuple[int, str, Any]] = []
        self.faults: list[str] = []
        self.failures = 0

    def run(self) -> list[str]:
        """Run every batch until it is written, ask in between, and tell what was wrong."""
        for number in range(self.batches):
            events = self._events()
            self.watermark_ms += self.draw.choice([0, TILE_MS, HOUR_MS // 2, HOUR_MS])
            kept = copy.deepcopy((self.shard.maps, self.shard.timers, self.shard.watermark))
            while not self._written(events, number):
                self.failures += 1
                self._ask(whole=False)
                maps, timers, watermark = copy.deepcopy(kept)
                self.shard.maps.clear()
                self.shard.maps.update(maps)
                self.shard.timers, self.shard.watermark = timers, watermark
            for origin, event in events:
                self.events[origin].append(event)
            self._ask(whole=True)
        return self.faults

    def _events(self) -> list[tuple[str, Event]]:
        near_ms = max(B, self.watermark_ms - HOUR_MS)
        return [
            (self.draw.choice(ORIGINS), (near_ms + self.draw.randrange(2 * HOUR_MS), (float(self.draw.randrange(9)),)))
            for _ in range(self.draw.randrange(1, 5))
        ]

    def _written(self, events: list[tuple[str, Event]], number: int) -> bool:
        rows = [part(KEYS[origin], time_ms, delay) for origin, (time_ms, (delay,)) in events]
        emitted = self.shard.batch([*rows, {"slot": CLOSING_SLOT, "tiles": None}], self.watermark_ms)
        self.store.failing = True
        try:
            self.put(Updates(emitted, self.draw), number)
        except UnavailableError:
            return False
        finally:
            self.store.failing = False
        return True

    def _ask(self, *, whole: bool) -> None:
        """Fetch some keys. While a batch is half written an answer may have any part of it; it fills caches."""
        for origin in self.draw.sample(ORIGINS, self.draw.randrange(1, 3)):
            # In the present: everything that was told is before it.
            query_ms = self.watermark_ms + 3 * HOUR_MS + self.draw.randrange(HOUR_MS)
            self.now_ms = query_ms
            answer = self.fetcher.fetch("route", {"origin": origin}, query_ms).features
            expected = oracle.features(GROUP_BY, self.events[origin], query_ms)
            self.answers.append((query_ms, origin, answer))
            if whole and answer != expected:
                self.faults.append(f"{origin} at {query_ms - B}: {answer}, expected {expected}")
