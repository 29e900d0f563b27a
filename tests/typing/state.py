"""What type checkers make of `millpond.state`."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, assert_type

from millpond.state import Context, Harness, Savepoint, States


class Counts:
    """An operator of a user's own."""

    def open(self, states: States) -> None:
        self.count = states.value("count", int, default=0, ttl=timedelta(hours=1))
        self.pages = states.map("pages", str, int)
        self.ids = states.list("ids", int, ttl=60_000)
        self.best = states.value("best", float)

    def process(self, key: Any, record: str, context: Context) -> Iterator[int]:
        assert_type(self.pages.get(record), int | None)
        self.ids.append("one")  # type: ignore[arg-type]
        context.event_timers.register(1_000)
        assert_type(self.best.update_with(lambda best: 1.0 if best is None else best + 1.0), float)
        assert_type(self.count.add(1), int)
        self.count.add("one")  # type: ignore[arg-type]
        yield self.count.get()


def a_harness_runs_an_operator() -> None:
    with Harness(Counts, key=len, key_type=int) as harness:
        harness.process("ada")
        assert_type(harness.take_output(), list[Any])
        assert_type(harness.watermark_ms, int)


def a_savepoint_opens(location: str) -> None:
    saved = Savepoint.open(location)
    assert_type(saved, Savepoint)
    assert_type(saved.location, str)
