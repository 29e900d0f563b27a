"""Where the time of a cached fetch goes: layer by layer, in process over LMDB, and then over HTTP.

Ten features of one entity; all but the last tile is cached. Each layer is called by itself with what the
fetch gives it, in interleaved rounds; a figure is the median of the rounds' medians, with the lowest and
the highest round beside it. What has no call of its own is the difference to the layer above. The layers of
fifty entities in one call are given for each entity. Over HTTP there is one connection, to the service and in
turn to a bare application on the same server.

    .venv/bin/python -m benchmarks.fetch_layers [--scale 0.1]
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from benchmarks.http_load import load
from benchmarks.report import grouped_bars, report
from benchmarks.serving import ENTITIES, definition
from benchmarks.serving_http import KEYS, NOW_MS, request_body, served
from benchmarks.serving_world import World, key_name
from millpond.features import MARKER_ADDRESS, stream_dataset
from millpond.features.answering import TileDecoder
from millpond.kv import Get, KVStore, LmdbStore
from millpond.serving import Fetcher, FetchRequest, http_app
from millpond.serving.http import Limits
from millpond.serving.http.bodies.json_bodies import JsonFetch, write_results
from millpond.serving.reads.cached_reader import CachedReader
from millpond.serving.reads.cached_reads import begin_many

ROUNDS = 15
CALLS = 2_000
SECONDS = 2.0
_TAIL_MS = 5 * 60_000

Call = Callable[[int], object]
Spread = tuple[float, float, float]
"""The median of the rounds, the lowest, the highest."""


def main() -> None:
    """Measure, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=1.0, help="of calls and seconds; 0.05 is a smoke test")
    scale = parser.parse_args().scale
    group_by = definition()
    with tempfile.TemporaryDirectory() as folder:
        store = LmdbStore(folder, sync=False)
        world = World(store, [group_by], KEYS, share_of_tiles=1.0)
        world.land()
        world.stream_until(NOW_MS)
        forms, ask, calls = _layers(store, world)
        inside = _measured(forms, ask, max(20, int(CALLS * scale)))
        store.close()
        seconds = max(0.5, SECONDS * scale)
        outside = _over_http(folder, f"/v1/fetch/{group_by.name}", seconds)
    rows = _rows(inside, outside)
    report(
        "fetch_layers",
        title="Where the time of a cached fetch goes: microseconds",
        columns=("layer", "median", "lowest", "highest"),
        rows=[*rows, ("Python functions called in a fetch, a number", calls, calls, calls)],
        result={"layers": {name: spread for name, *spread in rows}, "python_calls": calls},
        draw=lambda axes: grouped_bars(
            axes, [name for name, *_ in rows], {"median": [spread[0] for _, *spread in rows]}, ylabel="microseconds"
        ),
    )


def _layers(store: KVStore, world: World) -> tuple[dict[str, Call], Callable[[int], float], int]:
    """What is called for each layer, the application, and how many functions of Python one fetch calls."""
    plan = world.plans[0]
    fetcher = Fetcher(store, [plan], enable_fetcher_caching=True, refresh_ms=3_600_000, now=partial(int, NOW_MS))
    requests = [FetchRequest(plan.name, {"user": key_name("user", number)}, NOW_MS) for number in range(KEYS)]
    answers = [fetcher.fetch_many([request]) for request in requests * 2][KEYS:]
    keys = [plan.encode_key(request.keys) or b"" for request in requests]
    dataset = stream_dataset(plan.name, plan.generation)
    gets = [Get(dataset, key, NOW_MS - _TAIL_MS, MARKER_ADDRESS + 1) for key in keys]
    tails = [store.get_many((get,))[0] for get in gets]
    decode = TileDecoder(plan).decode
    read = JsonFetch(fetcher.targets[plan.name], Limits()).read
    bodies = [request_body([number]) for number in range(KEYS)]
    ask = _asgi_call(fetcher, f"/v1/fetch/{plan.name}", bodies)

    def empty(_: int) -> None:
        return

    forms: dict[str, Call] = {
        "empty": empty,
        "key": lambda n: plan.encode_key(requests[n].keys),
        "read": lambda n: store.get_many((gets[n],)),
        "decode": lambda n: [decode(keys[n], row.value) for row in tails[n]],
        "fetch": lambda n: fetcher.fetch(plan.name, requests[n].keys, NOW_MS),
        "json read": lambda n: read(bodies[n]),
        "json write": lambda n: write_results(answers[n]),
    }
    return (
        forms | _layers_of_many(store, fetcher, requests[:ENTITIES], keys[:ENTITIES]),
        ask,
        _functions_called(lambda: fetcher.fetch(plan.name, requests[0].keys, NOW_MS)),
    )


def _layers_of_many(
    store: KVStore, fetcher: Fetcher, requests: Sequence[FetchRequest], keys: Sequence[bytes]
) -> dict[str, Call]:
    """What is called for each layer of a fetch of several entities."""
    part = fetcher.prepare(requests[0].name).single
    assert part is not None
    assert isinstance(part.reader, CachedReader)
    assert part.finish_columns is not None
    encode, reader, finish = part.group.plan.encode_key, part.reader, part.finish_columns
    looked_up = begin_many(reader, keys, NOW_MS, NOW_MS)
    assert looked_up is not None
    tails = store.get_many(looked_up.gets)
    columns = looked_up.columns(tails)
    assert columns is not None
    return {
        "many key": lambda _: [encode(request.keys) for request in requests],
        "many look-up": lambda _: begin_many(reader, keys, NOW_MS, NOW_MS),
        "many read": lambda _: store.get_many(looked_up.gets),
        "many decode": lambda _: looked_up.columns(tails),
        "many finish": lambda _: finish(columns.bases, columns.tails),
        "many fetch": lambda _: fetcher.fetch_many(requests),
    }


def _asgi_call(fetcher: Fetcher, path: str, bodies: Sequence[bytes]) -> Callable[[int], float]:
    """Calls the application as a server does, without a server; gives the median seconds of so many calls."""
    app = http_app(fetcher)
    loop = asyncio.new_event_loop()
    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-type", b"application/json")]}
    body = b""

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(_: Mapping[str, Any]) -> None:
        return

    async def times(count: int) -> float:
        nonlocal body
        seconds = []
        for number in range(count):
            body = bodies[number % len(bodies)]
            began = time.perf_counter()
            await app(scope, receive, send)  # type: ignore[arg-type]  # our own app sends and takes plain dicts
            seconds.append(time.perf_counter() - began)
        return median(seconds)

    return lambda count: loop.run_until_complete(times(count))


def _functions_called(fetch: Callable[[], object]) -> int:
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        fetch()
    finally:
        sys.setprofile(None)
    return count - 1


def _measured(forms: dict[str, Call], ask: Callable[[int], float], calls: int) -> dict[str, Spread]:
    """Call each form in interleaved rounds, and the application; their microseconds a call."""
    found: dict[str, list[float]] = {name: [] for name in (*forms, "application")}
    gc.collect()
    gc.disable()
    for _ in range(ROUNDS):
        found["application"].append(1_000_000 * ask(calls))
        for name, form in forms.items():
            seconds = []
            for number in range(max(5, calls // 20) if name.startswith("many") else calls):
                asked = number % KEYS
                began = time.perf_counter()
                form(asked)
                seconds.append(time.perf_counter() - began)
            found[name].append(1_000_000 * median(seconds))
    gc.enable()
    return {name: _spread(rounds) for name, rounds in found.items()}


def _over_http(folder: str, path: str, seconds: float) -> dict[str, Spread]:
    """The median latency over one connection, of the service and of the bare application."""
    bodies = [request_body([number]) for number in range(KEYS)]
    found: dict[str, list[float]] = {"service": [], "bare": []}
    with served(folder, "service", 0) as (url, _), served(folder, "bare", 500) as (bare_url, _):
        load(url + path, bodies, connections=1, seconds=0.5)
        for _ in range(3):
            for name, of in (("service", url), ("bare", bare_url)):
                answered = load(of + path, bodies, connections=1, seconds=seconds)
                found[name].append(1_000 * answered["p50_ms"])
    return {name: _spread(rounds) for name, rounds in found.items()}


def _spread(rounds: Sequence[float]) -> Spread:
    return median(rounds), min(rounds), max(rounds)


def _rows(inside: dict[str, Spread], outside: dict[str, Spread]) -> list[tuple[str, float, float, float]]:
    def rest(whole: Spread, *parts: Spread) -> Spread:
        low, middle, high = (max(0.0, whole[place] - sum(part[place] for part in parts)) for place in (1, 0, 2))
        return middle, min(low, middle), max(high, middle)

    fetch, application = inside["fetch"], inside["application"]
    each = {name: (m / ENTITIES, low / ENTITIES, high / ENTITIES) for name, (m, low, high) in inside.items()}
    many = [each[f"many {name}"] for name in ("key", "look-up", "read", "decode", "finish")]
    layers = {
        "encode the key": inside["key"],
        "read the tail from LMDB": inside["read"],
        "decode the tail": inside["decode"],
        "caches, windows, merge, finish, answer": rest(fetch, inside["key"], inside["read"], inside["decode"]),
        "= a cached fetch in process": fetch,
        "of fifty, each: encode the key": many[0],
        "of fifty, each: look up what is closed": many[1],
        "of fifty, each: read the tail from LMDB": many[2],
        "of fifty, each: decode and merge the tail": many[3],
        "of fifty, each: merge with what is closed, finish": many[4],
        "of fifty, each: compare requests, answer, count": rest(each["many fetch"], *many),
        "= one of fifty cached in process": each["many fetch"],
        "JSON in": inside["json read"],
        "JSON out": inside["json write"],
        "routing, limits, counts": rest(application, fetch, inside["json read"], inside["json write"]),
        "uvicorn, sockets, the caller's loop": rest(outside["service"], application),
        "= a cached fetch over HTTP": outside["service"],
        "a bare application over HTTP": outside["bare"],
        "an empty function of Python": inside["empty"],
    }
    return [(name, *(round(one, 2) for one in spread)) for name, spread in layers.items()]  # type: ignore[misc]


if __name__ == "__main__":
    main()
