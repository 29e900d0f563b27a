"""A process whose memory and clocks the tests move, and backends in it."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from millpond.state.spi import StateDescriptor, StateKind
from millpond.state.spillable import SpillableBackend, SpillableSettings
from millpond.state.spillable.gc_pauses import GcPauses
from millpond.state.spillable.monitor import Monitor
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer

LIMIT = 100_000_000
REST = 5_000_000
COUNT = StateDescriptor("count", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(str))
GROUPS = range(8)


@dataclass
class World:
    """A process with `extra` bytes beside its state. It `keeps` what it frees, or gives it back to the system.

    Unless told otherwise nothing is loaded.
    """

    folder: Any
    ms: int = 0
    extra: int = REST
    keeps: bool = False
    peak: int = 0
    mapped: int = 0
    backends: list[SpillableBackend] = field(default_factory=list)
    monitor: Any = None

    def bytes(self):
        held = sum(backend._maintenance.heap_bytes for backend in self.backends)
        self.peak = max(self.peak, held)
        return self.extra + (self.peak if self.keeps else held)

    def watch(self, **settings):
        chosen = {
            "chunk_bytes": 1 << 20,
            "trigger_interval_ms": 1_000,
            "load_start_ratio": 1e-6,
            "load_end_ratio": 1e-5,
        }
        self.settings = SpillableSettings(**{**chosen, **settings})
        self.pauses = GcPauses(lambda: self.ms * 1_000_000)
        self.monitor = Monitor(self.settings, LIMIT, self.bytes, lambda: self.mapped, lambda: self.ms, self.pauses)

    def open(self, clock_ns=None, **given):
        if self.monitor is None:
            self.watch()
        backend = SpillableBackend(
            GROUPS,
            self.folder / f"state{len(self.backends)}",
            self.settings,
            monitor=self.monitor,
            clock_ns=clock_ns or (lambda: self.ms * 1_000_000),
            **given,
        )
        backend.value_state(COUNT)
        self.backends.append(backend)
        return backend

    def pause(self, milliseconds):
        """A garbage collection of this length."""
        self.pauses.heard("start", {"generation": 2})
        self.ms += milliseconds
        self.pauses.heard("stop", {"generation": 2})


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    for backend in world.backends:
        backend.close()


def put(backend, key_group, keys, length=1000):
    """Give keys values of a length, with the key group entered once."""
    state = backend.value_state(COUNT)
    backend.enter(key_group)
    for key in keys:
        backend.context.key = (key,)
        state.update(key.ljust(length, "."))


def filled(backend, per_group=1000):
    """The same in every key group, committed."""
    for key_group in GROUPS:
        put(backend, key_group, [f"{key_group}-{number}" for number in range(per_group)])
    return backend.commit()


def maintain(backend, key_group=0):
    """Enter a key group after a rollback, which makes the backend run maintenance."""
    backend.rollback()
    backend.enter(key_group)


def on_disk(backend):
    rows = backend.temperatures().to_pylist()
    return sorted({row["key_group"] for row in rows if row["place"] == "disk"})


def everything(backend):
    found = {}
    for key_group in GROUPS:
        cells = backend.cells("count", key_group)
        found |= dict(zip(cells.keys, cells.values, strict=True))
    return found
