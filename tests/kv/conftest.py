"""Stores of every kind for the tests of this folder; servers start when the first test asks, and stop at the end."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks import redis_servers
from millpond.kv import AsyncRedisStore, Get, KVStore, LmdbStore, MemoryStore, RedisStore, WalkableStore, async_store
from millpond.kv.expiry import wall_ms
from tests.kv.on_a_loop import OnALoop

SERVERS = {
    "redis": redis_servers.redis_server,
    "valkey": redis_servers.valkey_server,
    "cluster": redis_servers.redis_cluster,
}
STORES = ["memory", "lmdb", "own", *SERVERS]
WHOLE_STORES = [kind for kind in STORES if kind != "own"]
"""Those that can also be walked over, and whose rows expire: both are optional."""

FACES = [*STORES, *(f"async {kind}" for kind in STORES if kind != "valkey")]
"""Every store, and the async face of each."""

GUIDE = Path(__file__).parents[2] / "docs/how-to/kv-stores.md"
"""The guide with a store of one's own, which is tested as it stands there."""

WHOLE_FACES = [face for face in FACES if not face.endswith("own")]

MakeStore = Callable[..., WalkableStore]


@cache
def store_of_the_guide() -> type:
    """The class `SqliteStore` of the guide."""
    (code,) = re.findall(r"^```python\n(import sqlite3\n.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own page
    return names["SqliteStore"]


@pytest.fixture(scope="session")
def server():
    """Gives the running server of a kind."""
    running: dict[str, object] = {}
    with ExitStack() as stack:

        def started(kind: str):
            if kind not in running:
                running[kind] = stack.enter_context(SERVERS[kind]())
            return running[kind]

        yield started


@pytest.fixture(scope="session")
def make_store(server, tmp_path_factory) -> Iterator[MakeStore]:
    """Makes an empty store of a kind, or a second one that sees the same rows (`like=`)."""
    numbers = count()
    places: dict[int, tuple[Path, str]] = {}
    with ExitStack() as stack:

        def make(face: str, clock: Callable[[], int] = wall_ms, like: WalkableStore | None = None) -> WalkableStore:
            kind = face.removeprefix("async ")
            number = next(numbers)
            place = (tmp_path_factory.mktemp("kv"), f"test{number}") if like is None else places[id(like)]
            if kind == "memory":
                store = MemoryStore(clock=clock)
            elif kind == "own":
                store = store_of_the_guide()(place[0] / "own.db")
            elif kind == "lmdb":
                store = LmdbStore(place[0], map_bytes=1 << 20, sync=False, clock=clock)
            else:
                store = RedisStore(server(kind).url, prefix=place[1], clock=clock)
            if face != kind:
                store = OnALoop(async_store(store))
            stack.callback(store.close)
            places[id(store)] = place
            return store

        yield make


@pytest.fixture
def redis(server):
    """The server of the whole run, emptied."""
    running = server("redis")
    with running.client() as client:
        client.flushall()
    return running


@pytest.fixture(params=["sync", "async"])
def open_redis(request):
    """Opens a store on a URL, by either face."""
    opened = []

    def open_one(url, **options):
        store = RedisStore(url, **options) if request.param == "sync" else OnALoop(AsyncRedisStore(url, **options))
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def own_server():
    """A server that a test may ruin."""
    with redis_servers.redis_server("--appendonly", "yes", "--appendfsync", "always") as running:
        yield running


@pytest.fixture(params=FACES)
def face(request):
    """Every store and every async face, one after the other."""
    return request.param


@pytest.fixture
def store(face, make_store):
    """An empty store of the face."""
    store = make_store(face)
    yield store
    store.close()


def rows(store: KVStore, dataset: str, key: bytes, start_ms: int | None = None, end_ms: int | None = None):
    """Return the rows of a key as pairs of time and value."""
    return [(row.time_ms, row.value) for row in store.get_many([Get(dataset, key, start_ms, end_ms)])[0]]
