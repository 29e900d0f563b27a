"""The demo's features over its newest flights, in memory: what the page is looked at with."""

import random

import pyarrow.compute as pc

from millpond.demo.data import DAY_MS, HOUR_MS, load
from millpond.demo.definitions import AIRCRAFT, AIRPORT, FLIGHT, ROUTE
from millpond.kv import MemoryStore
from millpond.serving import Fetcher
from tests.demo.filled_store import EVENTS, fill

FLIGHTS = 2_500


class DemoWorld:
    """A fetcher of the demo, at noon after the batch end, and callers that ask it."""

    def __init__(self, cache_entries=2_000):
        flights = load().flights
        flights = flights.take(pc.sort_indices(flights["time_ms"])).slice(flights.num_rows - FLIGHTS)
        self.batch_end_ms = (flights["time_ms"][-1].as_py() // DAY_MS) * DAY_MS
        self.flights = flights
        self.store = MemoryStore()
        fill(self.store, flights.select(EVENTS.names), self.batch_end_ms, self.batch_end_ms + HOUR_MS)
        self.now_ms = self.batch_end_ms + 12 * HOUR_MS
        self.fetcher = self.new_fetcher(cache_entries)
        self._random = random.Random(7)
        self._keys = [
            {name: row[name] for name in ("origin", "carrier", "tailnum")}
            for row in flights.select(["origin", "carrier", "tailnum"]).to_pylist()
            if row["tailnum"] is not None
        ]

    def new_fetcher(self, cache_entries):
        return Fetcher(
            self.store,
            [ROUTE, AIRCRAFT, AIRPORT, FLIGHT],
            fetcher_cache_size=cache_entries,
            fetcher_tile_cache_size=cache_entries,
            now=lambda: self.now_ms,
        )

    def ask(self, count):
        """Ask for the features of random flights of the past."""
        for _ in range(count):
            keys = self._random.choice(self._keys)
            self.fetcher.fetch(FLIGHT, keys, context={"dest": "SFO"})
