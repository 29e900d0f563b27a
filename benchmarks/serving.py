"""What a fetch costs, in process and over HTTP, against the least that it could cost.

Ten features of one GroupBy: of one entity, and of fifty. The floors are measured in the same run, in
interleaved rounds: `flat_us` is the same answer by code written for this one GroupBy (look up the batch,
read a range, decode, finish), `bare_client_us` one read of the same range by the store's client, and a bare
ASGI application on the same server answers a constant of the same size. `one_by_one_144_us` decodes and
merges 144 tiles as the plan does. All figures in process are the median of the rounds' medians. A processor
changes its speed within seconds, so `ratios` compares two figures round by round: median, lowest and highest.

    .venv/bin/python -m benchmarks.serving [--scale 0.1] [--stores lmdb,redis]
"""

import argparse
import gc
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from benchmarks.redis_servers import redis_server
from benchmarks.report import grouped_bars, report
from benchmarks.serving_world import BATCH_END_MS, World, group_bys, key_name
from millpond.features import MARKER_ADDRESS, MINUTE_MS, GroupBy, GroupByPlan, Ir, layer_of, window_start
from millpond.features.answering import TileDecoder
from millpond.kv import Get, KVStore, Put, open_store
from millpond.serving import Fetcher, FetchRequest

KEYS = 200
ROUNDS = 60
CALLS = 400
TILES = 144
LOADED_ROWS = 1_000_000
SECONDS = 5.0
CONNECTIONS = 8
TILE_MS = 5 * MINUTE_MS
ENTITIES = 50
TAILS = (("", 1), ("_144_tiles", TILES))
"""The suffix of a measure, and how many tiles have passed since the batch end."""

RATIOS = {
    "cached_us": "flat_us",
    "uncached_us": "flat_us",
    "cached_144_tiles_us": "cached_us",
    "uncached_144_tiles_us": "one_by_one_144_us",
    "tail_freshness_us": "bare_client_us",
    "entities_50_us": "cached_us",
}
"""What is divided by what; over Redis, where a read is a round trip, `cached_us` by `bare_client_us`."""


def main() -> None:
    """Measure, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=1.0, help="of calls, rows and seconds; 0.05 is a smoke test")
    parser.add_argument("--stores", default="lmdb,redis")
    options = parser.parse_args()
    in_process = {}
    with ExitStack() as stack:
        for name in options.stores.split(","):
            urls = [_url(name, stack) for _ in TAILS]
            in_process[name] = _in_process(urls, max(20, int(CALLS * options.scale)))
    result = {
        "in_process": in_process,
        "http": _http(max(0.5, SECONDS * options.scale)),
        "bulk_load_rows_per_second": _bulk_load(int(LOADED_ROWS * options.scale)),
    }
    stores = list(in_process)
    names = [name for name in in_process[stores[0]] if name != "ratios"]
    ratios = list(dict.fromkeys(name for one in in_process.values() for name in one["ratios"]))
    report(
        "serving",
        title="Ten features of one entity: microseconds",
        columns=("measure", *stores),
        rows=[
            *((name, *(round(one[name], 1) for one in in_process.values())) for name in names),
            *(
                (f"{name}, by round", *(_shown(one["ratios"].get(name)) for one in in_process.values()))
                for name in ratios
            ),
        ],
        result=result,
        draw=lambda axes: grouped_bars(
            axes, names, {store: [one[name] for name in names] for store, one in in_process.items()}
        ),
    )


def definition() -> GroupBy:
    """The GroupBy that is asked for: ten features over four cells, with tiles of five minutes."""
    return next(one for one in group_bys() if len(one.feature_names) >= 9 and one.name == "user_1")


def _url(name: str, stack: ExitStack) -> str:
    if name == "redis":
        return str(stack.enter_context(redis_server()).url)
    return f"lmdb://{stack.enter_context(tempfile.TemporaryDirectory())}?sync=false"


def _in_process(urls: Sequence[str], calls: int) -> dict[str, Any]:
    """Measure all calls in the same rounds, over one store for each length of the tail."""
    group_by = definition()
    forms: dict[str, Callable[[str], object]] = {}
    names = [key_name("user", number) for number in range(KEYS)]
    stores = [open_store(url) for url in urls]
    for store, url, (suffix, tiles) in zip(stores, urls, TAILS, strict=True):
        world = World(store, [group_by], KEYS, share_of_tiles=1.0)
        world.land()
        plan = world.plans[0]
        now_ms = BATCH_END_MS + tiles * TILE_MS + MINUTE_MS
        world.stream_until(now_ms + (0 if tiles == 1 else TILE_MS))
        common: dict[str, Any] = {"refresh_ms": 3_600_000, "now": partial(int, now_ms)}
        cached = Fetcher(store, [group_by], enable_fetcher_caching=True, **common)
        plain = Fetcher(store, [group_by], enable_fetcher_caching=False, **common)
        recent = Fetcher(store, [group_by], enable_fetcher_caching=True, tail_freshness_ms=3_600_000, **common)
        flat = _Flat(url, store, plan, now_ms)
        many = [FetchRequest(group_by.name, {"user": name}, now_ms) for name in names[:ENTITIES]]
        for name in names:
            keys = {"user": name}
            expected = plain.fetch(group_by.name, keys, now_ms).features
            assert cached.fetch(group_by.name, keys, now_ms).features == expected
            assert recent.fetch(group_by.name, keys, now_ms).features == expected
            plainly = flat.fetch(keys) if tiles == 1 else flat.one_by_one(keys)
            assert plainly == expected, "the flat code answers something else"

        def asks(fetcher: Fetcher, at: int = now_ms) -> Callable[[str], object]:
            return lambda user: fetcher.fetch(group_by.name, {"user": user}, at)

        def asks_many(fetcher: Fetcher, requests: Sequence[FetchRequest]) -> Callable[[str], object]:
            return lambda _: fetcher.fetch_many(requests)

        def does(call: Callable[[dict[str, str]], object]) -> Callable[[str], object]:
            return lambda user: call({"user": user})

        forms |= {f"cached{suffix}_us": asks(cached), f"uncached{suffix}_us": asks(plain)}
        if tiles == 1:
            forms |= {
                "flat_us": does(flat.fetch),
                "tail_freshness_us": asks(recent),
                "bare_client_us": does(flat.read),
                "entities_50_us": asks_many(cached, many),
            }
        else:
            forms["one_by_one_144_us"] = does(flat.one_by_one)
    found = _measured(forms, names, calls)
    for store in stores:
        store.close()
    floors = RATIOS | ({"cached_us": "bare_client_us"} if urls[0].startswith("redis") else {})
    medians: dict[str, Any] = {name: median(rounds) for name, rounds in found.items()}
    ratios = {f"{name}/{floor}": _ratio(found[name], found[floor]) for name, floor in floors.items()}
    return medians | {"ratios": ratios}


def _shown(ratio: dict[str, float] | None) -> str:
    return "" if ratio is None else "{median:.2f} ({lowest:.2f} to {highest:.2f})".format(**ratio)


def _ratio(measured: Sequence[float], floor: Sequence[float]) -> dict[str, float]:
    """Divide figures of the same rounds."""
    by_round = [one / other for one, other in zip(measured, floor, strict=True)]
    return {"median": median(by_round), "lowest": min(by_round), "highest": max(by_round)}


class _Flat:
    """The answer for one GroupBy, with no more than it needs: what there is to do, and nothing around it."""

    def __init__(self, url: str, store: KVStore, plan: GroupByPlan, now_ms: int) -> None:
        self._store = store
        self._plan = plan
        self._now_ms = now_ms
        self._decode = TileDecoder(plan).decode
        self._dataset = f"{plan.name}.stream.{plan.generation}"
        self._tail_ms = (now_ms - 1) // TILE_MS * TILE_MS
        timeline = plan.timeline(BATCH_END_MS)
        self._windows = [
            (
                None if window.window_ms is None else window_start(now_ms, window.window_ms),
                [feature for _, feature in window.features],
            )
            for window in plan.windows
        ]
        self._segments = [
            0 if start is None else timeline.segment(start - BATCH_END_MS) if start < BATCH_END_MS else None
            for start, _ in self._windows
        ]
        self._bare: Any = None
        if url.startswith("redis"):
            import redis

            self._bare = redis.Redis.from_url(url)
            self._bare.zadd("bare", {b"x" * 90: self._tail_ms})
        self._rows: dict[bytes, tuple[Any, Ir | None]] = {}

    def fetch(self, keys: dict[str, str]) -> dict[str, Any]:
        """Look up the batch and the closed tiles, read the tail, merge, finish."""
        plan = self._plan
        key = plan.encode_key(keys)
        assert key is not None
        held = self._rows.get(key)
        if held is None:
            held = self._rows[key] = self._read_all(key)
        batch, closed = held
        (rows,) = self._store.get_many((Get(self._dataset, key, self._tail_ms, self._now_ms),))
        total = closed
        for row in rows:
            ir = self._decode(key, row.value).ir
            total = ir if total is None else plan.merge(total, ir)
        values = {}
        for (_, features), segment in zip(self._windows, self._segments, strict=True):
            window = total
            if batch is not None and segment is not None:
                at = bisect_left(batch.segments, segment)
                if at < len(batch.segments):
                    past = tuple([column[at] for column in batch.columns])
                    window = past if window is None else plan.merge(window, past)
            for feature in features:
                values[feature.name] = (
                    None if window is None else feature.finish(*[window[position] for position in feature.positions])
                )
        return values

    def read(self, keys: dict[str, str]) -> object:
        """One read of the range that a cached fetch reads; of Redis, by redis-py alone."""
        if self._bare is not None:
            return self._bare.zrangebyscore("bare", self._tail_ms, "+inf")
        key = self._plan.encode_key(keys)
        assert key is not None
        return self._store.get_many((Get(self._dataset, key, self._tail_ms, MARKER_ADDRESS + 1),))

    def one_by_one(self, keys: dict[str, str]) -> dict[str, Any]:
        """Read, decode and merge every tile of the smallest size, as the plan does."""
        key = self._plan.encode_key(keys)
        assert key is not None
        return self._plain(key)

    def _plain(self, key: bytes) -> dict[str, Any]:
        plan = self._plan
        batch, rows = self._store.get_many(
            [
                Get(f"{plan.name}.batch.{BATCH_END_MS}.1", key),
                Get(self._dataset, key, BATCH_END_MS, self._now_ms),
            ]
        )
        ir = plan.decode_batch(key, batch[0].value) if batch else None
        tiles = [plan.decode_tile(key, row.value) for row in rows if layer_of(row.time_ms) == 0]
        return plan.finish(self._now_ms, BATCH_END_MS, ir, tiles)

    def _read_all(self, key: bytes) -> tuple[Any, Ir | None]:
        plan = self._plan
        batch, rows = self._store.get_many(
            [
                Get(f"{plan.name}.batch.{BATCH_END_MS}.1", key),
                Get(self._dataset, key, BATCH_END_MS, self._tail_ms),
            ]
        )
        irs = [self._decode(key, row.value).ir for row in rows]
        return (plan.decode_batch(key, batch[0].value) if batch else None), (plan.merge_all(irs) if irs else None)


def _measured(forms: dict[str, Callable[[str], object]], names: Sequence[str], calls: int) -> dict[str, list[float]]:
    """Call each form in interleaved rounds; the microseconds of the median call of each round."""
    found: dict[str, list[float]] = {name: [] for name in forms}
    gc.collect()
    gc.disable()
    for _ in range(ROUNDS):
        for name, form in forms.items():
            count = max(5, calls // 20) if name.startswith(("entities", "one_by")) else calls
            seconds = []
            for number in range(count):
                asked = names[number % len(names)]
                began = time.perf_counter()
                form(asked)
                seconds.append(time.perf_counter() - began)
            found[name].append(1_000_000 * median(seconds))
    gc.enable()
    return found


def _bulk_load(rows: int) -> float:
    """Rows of 16-byte keys and 100-byte values that LMDB takes in a second."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"lmdb://{folder}?sync=false")
        store.create("loaded", rows="one")
        value = b"v" * 100
        puts = [Put(b"%016d" % number, value, 0) for number in range(rows)]
        began = time.perf_counter()
        store.bulk_put("loaded", puts)
        took = time.perf_counter() - began
        store.close()
    return rows / took


def _http(seconds: float) -> dict[str, Any]:
    """The service under load, against a bare application on the same server; see `serving_http`."""
    from benchmarks.serving_http import measured

    return measured(definition(), seconds, CONNECTIONS, ENTITIES)


if __name__ == "__main__":
    main()
