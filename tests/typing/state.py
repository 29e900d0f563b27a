"""What type checkers make of `millpond.state`."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

from millpond.state import (
    Context,
    ForwardingBackend,
    Harness,
    HeapBackend,
    KeyedStateBackend,
    RocksDbBackend,
    Snapshot,
    StateOptions,
    States,
    Ttl,
    open_backend,
)


class Counts:
    """An operator of a user's own."""

    def open(self, states: States) -> None:
        self.count = states.value("count", int, default=0, ttl=timedelta(hours=1))
        self.pages = states.map("pages", str, int)
        self.ids = states.list("ids", int, ttl=Ttl(60_000))

    def process(self, key: Any, record: str, context: Context) -> Iterator[int]:
        assert_type(self.pages.get(record), int | None)
        self.ids.append("one")  # type: ignore[arg-type]
        context.event_timers.register(1_000)
        yield self.count.get()


def a_harness_runs_an_operator() -> None:
    with Harness(Counts, key=len, key_type=int) as harness:
        harness.process("ada")
        assert_type(harness.take_output(), list[Any])
        assert_type(harness.watermark_ms, int)


def every_backend_is_one(folder: Path) -> list[KeyedStateBackend]:
    return [HeapBackend(range(4)), RocksDbBackend(range(4), folder), ForwardingBackend(HeapBackend(range(4)))]


def a_version_is_a_snapshot(backend: KeyedStateBackend) -> None:
    assert_type(backend.commit(), Snapshot)
    assert_type(backend.rollback(), bool)


def options_open_a_backend(options: StateOptions, folder: Path) -> None:
    assert_type(open_backend(options, range(4), folder), KeyedStateBackend)
    open_backend("heap", range(4), folder)  # type: ignore[arg-type]
