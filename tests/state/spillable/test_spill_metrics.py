"""What a heap that spills tells a recorder."""

import pytest

from millpond.metrics import MemoryRecorder
from millpond.state.spi import StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer
from tests.state.spillable.conftest import filled, maintain, put

SEEN = StateDescriptor("seen", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int))


def test_metrics_say_what_is_where(world):
    recorder = MemoryRecorder()
    backend = world.open()
    backend.report_to(recorder)
    filled(backend)
    backend.spill_now([1, 2])
    world.ms += 1_000
    backend.enter(0)
    assert recorder.level("millpond_spillable_key_groups", name="heap") == 6
    assert recorder.level("millpond_spillable_key_groups", name="disk") == 2
    assert recorder.level("millpond_spillable_bytes", name="disk") > 2_000_000
    assert recorder.level("millpond_spillable_bytes", name="heap") == pytest.approx(6 * 1_150_000, rel=0.1)
    assert recorder.total("millpond_spillable_moves_total", name="spill") == 2
    stats = backend.stats()
    assert (stats.heap_groups, stats.disk_groups, stats.spills, stats.loads) == (6, 2, 2, 0)


def test_a_recorder_is_told_once_a_second_and_at_the_end(world, monkeypatch):
    recorder = MemoryRecorder()
    backend = world.open()
    backend.report_to(recorder)
    counted = []
    asked = backend._migrator.disk_bytes
    monkeypatch.setattr(backend._migrator, "disk_bytes", lambda: counted.append(world.ms) or asked())
    filled(backend, per_group=10)
    for turn in range(20):
        backend.spill_now([turn % 8])
        world.ms += 100
        put(backend, 0, ["more"])
        backend.commit()
    assert counted == [0, 1_000, 2_000]
    assert recorder.total("millpond_spillable_moves_total", name="spill") == 8
    backend.load_now([1, 2])
    backend.close()
    assert recorder.total("millpond_spillable_moves_total", name="load") == 2
    backend.close()
    assert recorder.total("millpond_spillable_moves_total", name="load") == 2


def test_moves_are_told_at_every_commit(world):
    recorder = MemoryRecorder()
    backend = world.open()
    backend.report_to(recorder)
    filled(backend, per_group=10)
    for moved, name in ((backend.spill_now, "spill"), (backend.load_now, "load")):
        moved([1, 2])
        put(backend, 0, [name])
        backend.commit()
        assert recorder.total("millpond_spillable_moves_total", name=name) == 2


def test_nobody_counts_for_a_recorder_that_is_not_there(world, monkeypatch):
    backend = world.open()
    monkeypatch.setattr(backend._migrator, "disk_bytes", lambda: 1 // 0)
    filled(backend)
    world.ms += 5_000
    maintain(backend)
    backend.commit()
    backend.close()
    assert backend._maintenance.heap_bytes == 0
