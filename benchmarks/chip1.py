"""What each step of CHIP-1 saves: latency, CPU, gets and rows of a Join over ten GroupBys.

The steps are switched on one by one: `off`; `batch_ir` keeps decoded batch rows; `batch_get` also skips
their gets; `tile_ir` keeps closed tiles merged; `stream_get` also moves the start of the get; `all` is every
step with everything beyond the seed. `mixed` asks for all ten GroupBys, `skewed` for those of the two kinds
of keys that follow Zipf's law. Caches hold a tenth of each GroupBy's keys, and are asked ten times for each
place in them before anything is measured. Times are after the batch end.

The steps are switched on one by one at noon, where the bars are; at the other times there are `off` and `all`.
Each store, time and kind of request is measured in a process of its own, in interleaved rounds of all
steps; figures are medians of the rounds. `process_bytes` is what the process grew by while the caches
filled. `later` has `all` for skewed keys at the first and at the last time, in turns in one process, each
over a server of its own; its `ratio` is the last p50 divided by the first. `useless` compares `all` with
`off` where a cache cannot help: uniform keys and a tiny cache. `landing` asks while a batch lands again with
other values: `wrong` counts answers that mix the two.

    .venv/bin/python -m benchmarks.chip1 [--scale 0.1] [--stores redis,lmdb,cluster] [--every-step-at 12:00]
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.redis_servers import redis_cluster, redis_server
from benchmarks.report import grouped_bars, report
from benchmarks.serving_world import BATCH_END_MS, HOUR_MS, KINDS, SKEWED, Asked, World, group_bys, join
from millpond.features import GroupBy
from millpond.kv import KVStore, open_store
from millpond.serving import Fetcher, FetcherStats

KEYS = 10_000
REQUESTS = 300
ROUNDS = 7
TIMES = {"06:00": 6 * HOUR_MS, "12:00": 12 * HOUR_MS, "36h": 36 * HOUR_MS}
STEPS: dict[str, tuple[str, ...]] = {
    "off": (),
    "batch_ir": ("batch_ir",),
    "batch_get": ("batch_ir", "batch_get"),
    "tile_ir": ("batch_ir", "batch_get", "tile_ir"),
    "stream_get": ("batch_ir", "batch_get", "tile_ir", "stream_get"),
    "all": ("batch_ir", "batch_get", "tile_ir", "stream_get"),
}
_HALVES = (slice(None, 5), slice(5, None))
_MINUTES_PAST_MS = 150_000
"""How far behind the full hour the requests ask: into an open tile."""


def main() -> None:
    """Measure every store, and report."""
    options = _options()
    if options.child:
        print(json.dumps(_measured(json.loads(options.child))))
        return
    keys = max(50, int(KEYS * options.scale))
    result: dict[str, Any] = {}
    with ExitStack() as stack:
        urls = {name: _url(name, stack) for name in options.stores.split(",")}
        asked = {"keys": keys, "requests": max(20, int(REQUESTS * options.scale)), "rounds": options.rounds}
        for name, url in urls.items():
            result[name] = _of_store(url, options.times.split(","), options.every_step_at.split(","), asked)
        name, first = next(iter(urls.items()))
        times = options.times.split(",")
        if len(times) > 1:
            result["later"] = _later({times[0]: _url(name, stack), times[-1]: first}, asked)
        result |= {"useless": _useless(first, keys, options.rounds), "landing": _landing(first, keys)}
    _report(result)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=1.0, help="of keys and requests; 0.05 is a smoke test")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--stores", default="redis,lmdb,cluster")
    parser.add_argument("--times", default=",".join(TIMES), help="after the batch end")
    parser.add_argument("--every-step-at", default="12:00", help="at other times `off` and `all` alone")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _url(name: str, stack: ExitStack) -> str:
    if name == "lmdb":
        return f"lmdb://{stack.enter_context(tempfile.TemporaryDirectory())}?sync=false"
    server: Any = stack.enter_context(redis_cluster() if name == "cluster" else redis_server())
    return str(server.url)


def _of_store(url: str, times: Sequence[str], every_step_at: Sequence[str], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Write the world up to each time, and measure both kinds of requests there."""
    found: dict[str, Any] = {"mixed": {}, "skewed": {}}
    store = open_store(url)
    World(store, group_bys(), asked["keys"]).land()
    written_ms = BATCH_END_MS
    for label in times:
        now_ms = BATCH_END_MS + TIMES[label] + _MINUTES_PAST_MS
        _stream(url, asked["keys"], written_ms, now_ms)
        written_ms = now_ms
        for kind, of_times in found.items():
            steps = list(STEPS) if label in every_step_at else ["off", "all"]
            runs = {step: (url, now_ms, step) for step in steps}
            of_times[label] = _in_child({"kind": kind, "runs": runs, **asked})
            print(f"{url.split(':', maxsplit=1)[0]} {kind} {label} measured", file=sys.stderr, flush=True)
    store.close()
    return found


def _later(urls: Mapping[str, str], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Compare `all` at two times; the world of the second is there already."""
    first, last = urls
    store = open_store(urls[first])
    World(store, group_bys(), asked["keys"]).land()
    store.close()
    times = {label: BATCH_END_MS + TIMES[label] + _MINUTES_PAST_MS for label in urls}
    _stream(urls[first], asked["keys"], BATCH_END_MS, times[first])
    runs = {label: (url, times[label], "all") for label, url in urls.items()}
    found: dict[str, Any] = _in_child({"kind": "skewed", "runs": runs, **asked})
    return found | {"ratio": found[last]["p50_ms"] / found[first]["p50_ms"]}


def _stream(url: str, keys: int, written_ms: int, now_ms: int) -> None:
    """Write what the stream would have written since a moment, in two processes with half of the GroupBys each."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for half in [pool.submit(_stream_half, url, half, keys, written_ms, now_ms) for half in _HALVES]:
            half.result()


def _stream_half(url: str, half: slice, keys: int, written_ms: int, now_ms: int) -> None:
    store = open_store(url)
    World(store, group_bys()[half], keys, written_ms=written_ms).stream_until(now_ms)
    store.close()


def _in_child(asked: Mapping[str, Any]) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chip1", "--child", json.dumps(asked)],
        stdout=subprocess.PIPE,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    return json.loads(done.stdout.splitlines()[-1])


def _measured(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Measure all runs in interleaved rounds."""
    stores = {url: open_store(url) for url, _, _ in asked["runs"].values()}
    definitions = group_bys(max(5, asked["keys"] // 10))
    kinds = KINDS if asked["kind"] == "mixed" else SKEWED
    wanted = join(asked["kind"], [one for one in definitions if one.keys[0].name in kinds])
    runs = {
        label: _Run(stores[url], wanted, STEPS[steps], kinds, {"now_ms": now_ms, **asked})
        for label, (url, now_ms, steps) in asked["runs"].items()
    }
    for run in runs.values():
        run.fill()
    for number in range(asked["rounds"]):
        for run in runs.values():
            run.round(number)
    return {name: run.result() for name, run in runs.items()}


class _Run:
    """One choice of steps."""

    def __init__(
        self, store: KVStore, wanted: Any, steps: Sequence[str], kinds: Sequence[str], asked: Mapping[str, Any]
    ) -> None:
        self._fetcher = Fetcher(store, [wanted], steps=steps, refresh_ms=60_000, now=lambda: self._now_ms)
        self._wanted = wanted
        self._steps = steps
        self._kinds = kinds
        self._asked = asked
        self._now_ms = asked["now_ms"]
        self._rounds: list[dict[str, float]] = []
        self._before: FetcherStats | None = None
        self._grew = 0

    def fill(self) -> None:
        """Ask until the caches are full, and note what the process grew by."""
        draw = Asked(self._asked["keys"], seed=1)
        self._fetcher.fetch(self._wanted, draw.keys(self._kinds), self._now_ms)
        gc.collect()
        before = self._fetcher.stats().process_bytes
        for _ in range(self._asked["keys"] if self._steps else self._asked["requests"]):
            self._fetcher.fetch(self._wanted, draw.keys(self._kinds), self._now_ms)
        gc.collect()
        self._before = self._fetcher.stats()
        self._grew = self._before.process_bytes - before

    def round(self, number: int) -> None:
        """Ask for one round's keys, which are the same for every choice of steps."""
        draw = Asked(self._asked["keys"], seed=100 + number)
        keys = [draw.keys(self._kinds) for _ in range(self._asked["requests"])]
        seconds = []
        gc.collect()
        gc.disable()
        cpu, began = time.process_time(), time.perf_counter()
        for one in keys:
            start = time.perf_counter()
            self._fetcher.fetch(self._wanted, one, self._now_ms)
            seconds.append(time.perf_counter() - start)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        gc.enable()
        seconds.sort()
        self._rounds.append(
            {
                "p50_ms": 1_000 * seconds[len(seconds) // 2],
                "p99_ms": 1_000 * seconds[int(0.99 * len(seconds))],
                "requests_per_second": len(keys) / took,
                "cpu_us_per_fetch": 1_000_000 * cpu / len(keys),
            }
        )

    def result(self) -> dict[str, float]:
        """The medians of the rounds, and what was counted in them."""
        after, before = self._fetcher.stats(), self._before
        assert before is not None
        fetches = after.requests - before.requests
        # Closed tiles are looked up first, and a hit needs no batch row.
        first = [name for name in after.caches if name.endswith(".tiles")] or list(after.caches)
        hits = sum(after.caches[name].hits - before.caches[name].hits for name in first)
        asks = hits + sum(after.caches[name].misses - before.caches[name].misses for name in first)
        return {name: median(one[name] for one in self._rounds) for name in self._rounds[0]} | {
            "kv_calls_per_fetch": (after.kv_calls - before.kv_calls) / fetches,
            "kv_rows_per_fetch": (after.rows_read - before.rows_read) / fetches,
            "kv_bytes_per_fetch": (after.bytes_read - before.bytes_read) / fetches,
            "decode_share": self._decode_share(),
            "hit_rate": hits / asks if asks else 0.0,
            "cache_bytes": sum(cache.bytes or 0 for cache in after.caches.values()),
            "process_bytes": self._grew,
        }

    def _decode_share(self) -> float:
        """The share of a fetch's CPU time that goes into decoding, in a round of its own."""
        spent = [0.0]

        def counted(decode: Any) -> Any:
            def measured(*given: Any) -> Any:
                began = time.perf_counter()
                found = decode(*given)
                spent[0] += time.perf_counter() - began
                return found

            return measured

        for group in self._fetcher.groups:
            group.decode_tile, group.decode_batch = counted(group.decode_tile), counted(group.decode_batch)
        self.round(len(self._rounds))
        took = self._asked["requests"] / self._rounds.pop()["requests_per_second"]
        return float(spent[0] / took)


def _useless(url: str, keys: int, rounds: int) -> dict[str, float]:
    """`all` against `off` for uniform keys and a cache of next to nothing."""
    store = open_store(url)
    now_ms = BATCH_END_MS + TIMES["36h"] + _MINUTES_PAST_MS
    uniform = [one for one in group_bys(3) if one.keys[0].name == "card"]
    wanted = join("useless", uniform)
    fetchers = {
        name: Fetcher(store, [wanted], steps=STEPS[name], refresh_ms=60_000, now=lambda: now_ms)
        for name in ("off", "all")
    }
    ratios = []
    for number in range(rounds + 1):
        draw = Asked(keys, seed=number)
        asked = [draw.keys(("card",)) for _ in range(200)]
        took = {}
        for name, fetcher in fetchers.items():
            began = time.process_time()
            for one in asked:
                fetcher.fetch(wanted, one, now_ms)
            took[name] = time.process_time() - began
        ratios.append(took["all"] / took["off"])
    store.close()
    return {"ratio": median(ratios[1:])}


def _landing(url: str, keys: int) -> dict[str, float]:
    """Ask while a batch lands again with other values."""
    store = open_store(url)
    now_ms = BATCH_END_MS + TIMES["36h"] + _MINUTES_PAST_MS
    definitions = [one for one in group_bys(keys) if one.keys[0].name in SKEWED]
    wanted = join("landing", definitions)
    plain = Fetcher(store, [wanted], steps=(), refresh_ms=0, now=lambda: now_ms)
    fetcher = Fetcher(store, [wanted], refresh_ms=50, now=lambda: now_ms)
    draw = Asked(min(keys, 200), seed=3)
    asked = [draw.keys(SKEWED) for _ in range(100)]
    old = [plain.fetch(wanted, one, now_ms).features for one in asked]
    for one in asked:
        fetcher.fetch(wanted, one, now_ms)
    world = World(store, definitions, keys)
    lander = threading.Thread(target=lambda: world.land(2, shift=1.0))
    answers: list[tuple[int, float, Any]] = []
    began = time.perf_counter()
    answers += [
        _timed(fetcher, wanted, asked, number, now_ms)
        for number in _numbers(len(asked), lambda: time.perf_counter() - began < 1.0)
    ]
    before = len(answers)
    lander.start()
    answers += [_timed(fetcher, wanted, asked, number, now_ms) for number in _numbers(len(asked), lander.is_alive)]
    began = time.perf_counter()
    answers += [
        _timed(fetcher, wanted, asked, number, now_ms)
        for number in _numbers(len(asked), lambda: time.perf_counter() - began < 1.0)
    ]
    new = [plain.fetch(wanted, one, now_ms).features for one in asked]
    wrong = sum(not _is_of_one_batch(found, old[number], new[number], definitions) for number, _, found in answers)
    store.close()
    return {
        "p99_ms_before": _p99_ms(answers[:before]),
        "p99_ms_after": _p99_ms(answers[before:]),
        "wrong": wrong,
    }


def _timed(fetcher: Fetcher, wanted: Any, asked: Sequence[Any], number: int, now_ms: int) -> tuple[int, float, Any]:
    start = time.perf_counter()
    features = fetcher.fetch(wanted, asked[number], now_ms).features
    return number, time.perf_counter() - start, features


def _numbers(count: int, goes_on: Any) -> Iterator[int]:
    number = 0
    while goes_on():
        yield number % count
        number += 1


def _is_of_one_batch(found: Any, old: Any, new: Any, definitions: Sequence[GroupBy]) -> bool:
    """Whether each GroupBy's values are all of the former batch, or all of the latter."""
    for one in definitions:
        names = [f"{one.name}_{name}" for name in one.feature_names]
        values = [found.get(name) for name in names]
        if values not in ([old[name] for name in names], [new[name] for name in names]):
            return False
    return True


def _p99_ms(answers: Sequence[tuple[int, float, Any]]) -> float:
    seconds = sorted(one for _, one, _ in answers)
    return 1_000 * seconds[int(0.99 * len(seconds))]


def _report(result: dict[str, Any]) -> None:
    stores = [name for name in result if name not in ("later", "useless", "landing")]
    rows = [
        (store, kind, label, steps, *(round(one[name], 3) for name in _SHOWN))
        for store in stores
        for kind, times in result[store].items()
        for label, by_steps in times.items()
        for steps, one in by_steps.items()
    ]
    shown = result[stores[0]]["skewed"]
    common = [steps for steps in STEPS if all(steps in one for one in shown.values())]
    report(
        "chip1",
        title=f"CHIP-1 step by step, {stores[0]}, skewed keys: p50 of a Join in ms",
        columns=("store", "requests", "time", "steps", *_SHOWN),
        rows=rows,
        result=result,
        draw=lambda axes: grouped_bars(
            axes,
            list(shown),
            {steps: [one[steps]["p50_ms"] for one in shown.values()] for steps in common},
        ),
    )


_SHOWN = ("p50_ms", "p99_ms", "kv_calls_per_fetch", "kv_rows_per_fetch", "cpu_us_per_fetch", "decode_share", "hit_rate")

if __name__ == "__main__":
    main()
