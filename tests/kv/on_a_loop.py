"""An async store as a plain one, so that the same tests run over both."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from functools import cache
from typing import Any, Self

from millpond.kv import Get, Put, TimedValue
from millpond.kv.store import Rows


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One event loop for all, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


class OnALoop:
    """Runs each call of an `AsyncKVStore` to its end on an event loop in another thread."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def create(self, dataset: str, *, rows: Rows, ttl_ms: int | None = None) -> None:
        self.run(self.store.create(dataset, rows=rows, ttl_ms=ttl_ms))

    def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        self.run(self.store.put_many(dataset, puts))

    def bulk_put(self, dataset: str, puts: Iterable[Put]) -> None:
        self.run(self.store.bulk_put(dataset, puts))

    def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        return self.run(self.store.get_many(gets))

    def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        return self.run(self.store.next_keys(dataset, after, most))

    def delete_keys(self, dataset: str, keys: Iterable[bytes]) -> None:
        self.run(self.store.delete_keys(dataset, keys))

    def drop(self, dataset: str) -> None:
        self.run(self.store.drop(dataset))

    def datasets(self) -> list[str]:
        return self.run(self.store.datasets())

    def close(self) -> None:
        self.run(self.store.close())

    def __enter__(self) -> Self:
        assert self.run(self.store.__aenter__()) is self.store
        return self

    def __exit__(self, *raised: object) -> None:
        self.run(self.store.__aexit__(*raised))

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, _loop()).result(60)
