"""The HTTP part of `benchmarks.serving`: the service under load, and a bare application on the same server.

The server runs in a process of its own, the load generator in another. The bare application reads the body
of a call and answers a constant, as long as the service's own answer.

    .venv/bin/python -m benchmarks.serving_http FOLDER service|bare LENGTH    serves until stdin ends
"""

import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from uvicorn import Config, Server

from benchmarks.http_load import load
from benchmarks.serving_world import BATCH_END_MS, World, group_bys, key_name
from millpond.features import MINUTE_MS, GroupBy
from millpond.kv import LmdbStore
from millpond.serving import Fetcher, http_app, running_server
from millpond.serving.http.running.server import bound_listener

KEYS = 200
NOW_MS = BATCH_END_MS + 6 * MINUTE_MS
_ROUNDS = 3


def measured(group_by: GroupBy, seconds: float, connections: int, entities: int) -> dict[str, Any]:
    """Load the service and the bare application in turn; the medians by requests per second."""
    with tempfile.TemporaryDirectory() as folder:
        store = LmdbStore(folder, sync=False)
        world = World(store, [group_by], KEYS, share_of_tiles=1.0)
        world.land()
        world.stream_until(NOW_MS)
        plain = Fetcher(store, [group_by])
        one = json.dumps({"results": [_as_json(plain.fetch(group_by.name, _keys(0), NOW_MS))]})
        store.close()
        path = f"/v1/fetch/{group_by.name}"
        bodies = [request_body([number]) for number in range(KEYS)]
        many = [request_body([(first + number) % KEYS for number in range(entities)]) for first in range(20)]
        with served(folder, "service", 0) as (url, pid), served(folder, "bare", len(one)) as (bare_url, _):
            load(url + path, bodies, connections=connections, seconds=0.5)
            rounds = []
            for _ in range(_ROUNDS):
                cpu = _cpu_seconds(pid)
                answered = load(url + path, bodies, connections=connections, seconds=seconds)
                cpu = _cpu_seconds(pid) - cpu
                bare = load(bare_url + path, bodies, connections=connections, seconds=seconds)
                rounds.append((answered, bare, cpu))
            fifty = load(url + path, many, connections=connections, seconds=seconds)
    rounds.sort(key=lambda one: one[0]["requests_per_second"])
    answered, _, cpu = rounds[len(rounds) // 2]
    return {
        "requests_per_second": answered["requests_per_second"],
        "bare_requests_per_second": sorted(bare["requests_per_second"] for _, bare, _ in rounds)[_ROUNDS // 2],
        "p50_ms": answered["p50_ms"],
        "p99_ms": answered["p99_ms"],
        "errors": sum(one["errors"] for one, _, _ in rounds) + fifty["errors"],
        "processes": 1,
        "cpu_us_per_request": 1_000_000 * cpu / max(1, answered["requests"]),
        "entities_50_per_second": fifty["requests_per_second"] * entities,
    }


def _keys(number: int) -> dict[str, str]:
    return {"user": key_name("user", number)}


def request_body(numbers: Sequence[int]) -> bytes:
    """The body of a call for some keys."""
    return json.dumps({"requests": [{"keys": _keys(number), "at": NOW_MS} for number in numbers]}).encode()


def _as_json(answer: Any) -> Mapping[str, Any]:
    return {name: getattr(answer, name) for name in ("name", "keys", "at", "features", "batch_end_ms")}


@contextmanager
def served(folder: str, kind: str, length: int) -> Iterator[tuple[str, int]]:
    """The service or the bare application in a process of its own: URL and process id."""
    command = [sys.executable, "-m", "benchmarks.serving_http", folder, kind, str(length)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            yield url, process.pid
        finally:
            process.communicate()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Bare:
    """Answers every call with the same bytes."""

    def __init__(self, length: int) -> None:
        self._body = b"x" * length
        self._headers = [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await send({"type": "http.response.body", "body": self._body})


def _serve_bare(length: int) -> None:
    started = threading.Event()

    class Announcing(Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

    with bound_listener("127.0.0.1", 0) as listener:
        server = Announcing(Config(_Bare(length), lifespan="off", log_level="critical", access_log=False, ws="none"))
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        started.wait(30)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        sys.stdin.read()
        server.should_exit = True
        thread.join(5)


def _serve(folder: str, kind: str, length: int) -> None:
    # As `millpond serve` does: what was loaded so far stays, and the collector need not look at it again.
    gc.collect()
    gc.freeze()
    if kind == "bare":
        _serve_bare(length)
        return
    definition = next(one for one in group_bys() if one.name == "user_1")
    store = LmdbStore(folder, sync=False)
    # The requests ask for now, as most do and as the part in process does; else each would be one about the past.
    fetcher = Fetcher(store, [definition], enable_fetcher_caching=True, now=partial(int, NOW_MS))
    with running_server(http_app(fetcher)) as url:
        print(url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
