"""When key groups are spilled and loaded."""

import itertools
import warnings
from dataclasses import replace

import pytest

from millpond.errors import OptionError
from millpond.state.spillable.accounting import StateSizes
from tests.state.spillable.conftest import COUNT, GROUPS, LIMIT, World, everything, filled, maintain, on_disk, put


def test_nothing_moves_below_the_watermark(world):
    backend = world.open()
    filled(backend)
    world.ms += 3_600_000
    maintain(backend)
    assert on_disk(backend) == []
    assert backend.stats().reason == ""


def test_above_the_watermark_a_pass_spills_a_share_of_the_heap(world):
    backend = world.open()
    filled(backend)
    whole = backend.stats().heap_bytes
    world.extra = LIMIT // 2
    world.ms += 60_000
    maintain(backend)
    stats = backend.stats()
    assert 0.2 * whole <= whole - stats.heap_bytes < 0.4 * whole
    assert (stats.spills, stats.reason) == (2, "memory above the high watermark")
    assert len(everything(backend)) == 8000


def test_the_clock_is_looked_at_once_an_interval(world):
    backend = world.open()
    filled(backend)
    maintain(backend)
    # Too little for a check by bytes, and too soon for one by the clock.
    world.extra = LIMIT // 2 - backend._maintenance.heap_bytes - 100
    world.monitor.check()
    world.extra += 200
    world.ms += 59_000
    maintain(backend)
    assert on_disk(backend) == []
    world.ms += 1_000
    maintain(backend)
    assert on_disk(backend) != []


def test_a_burst_is_noticed_between_two_looks_of_the_clock(world):
    backend = world.open()
    filled(backend)
    world.extra = LIMIT // 2
    maintain(backend)
    assert len(on_disk(backend)) == 2


def test_memory_is_checked_sooner_where_records_write_much(world, monkeypatch):
    backend = world.open()
    records, checked, check = itertools.count(), [0], world.monitor.check
    monkeypatch.setattr(world.monitor, "check", lambda: (checked.append(next(records)), check()))

    def records_between_runs(bytes_each):
        for _ in range(100_000):
            next(records)
            backend.enter(0)
            world.extra += bytes_each
        return checked[-1] - checked[-2]

    assert records_between_runs(0) > 4_000
    assert 300 * records_between_runs(300) <= 1.01 * world.monitor.check_every_bytes
    assert records_between_runs(0) > 4_000


def test_passes_keep_an_interval(world):
    backend = world.open()
    filled(backend)
    world.extra = int(LIMIT * 0.6)
    maintain(backend)
    assert len(on_disk(backend)) == 2
    world.ms += 999
    world.extra += LIMIT // 64
    maintain(backend)
    assert len(on_disk(backend)) == 2
    world.ms += 1
    world.extra += LIMIT // 64
    maintain(backend)
    assert len(on_disk(backend)) == 4


def test_above_the_hard_mark_intervals_do_not_apply_and_what_is_above_the_watermark_goes(world):
    backend = world.open()
    filled(backend)
    world.extra = int(LIMIT * 0.76)
    maintain(backend)
    first = len(on_disk(backend))
    maintain(backend)
    assert first == len(GROUPS)
    assert backend.stats().reason == "memory above the hard mark"


def test_memory_that_was_just_freed_is_not_spilled_for_again(world):
    """The process does not shrink by what was spilled: Python keeps it."""
    world.keeps = True
    backend = world.open()
    filled(backend)
    maintain(backend)
    world.extra = int(LIMIT * 0.51) - backend._maintenance.heap_bytes
    maintain(backend)
    spilled = on_disk(backend)
    assert len(spilled) == 2
    for _ in range(5):
        world.ms += 60_000
        maintain(backend)
        assert on_disk(backend) == spilled


def test_long_pauses_of_garbage_collection_spill(world):
    backend = world.open()
    filled(backend)
    maintain(backend)
    world.pause(2_500)
    world.ms += 60_000
    maintain(backend)
    assert backend.stats().reason == "garbage collection"
    assert len(on_disk(backend)) == 2


def test_the_mean_is_that_of_a_check_interval_whenever_memory_was_looked_at(world):
    backend = world.open()
    filled(backend)
    maintain(backend)
    world.pause(2_500)
    for _ in range(5):
        world.extra += LIMIT // 64
        world.ms += 1_000
        maintain(backend)
    assert on_disk(backend) == []
    world.pause(500)
    world.ms += 60_000
    maintain(backend)
    assert on_disk(backend) == []
    world.pause(2_500)
    world.ms += 60_000
    maintain(backend)
    assert backend.stats().reason == "garbage collection"


@pytest.mark.parametrize(("threshold_ms", "spills"), [(1_000, True), (3_000, False)])
def test_the_threshold_of_pauses_is_an_option(world, threshold_ms, spills):
    world.watch(gc_time_threshold_ms=threshold_ms)
    backend = world.open()
    filled(backend)
    maintain(backend)
    world.pause(1_500)
    world.ms += 60_000
    maintain(backend)
    assert bool(on_disk(backend)) == spills


@pytest.mark.parametrize(("ratio", "spills"), [(0.4, True), (0.6, False)])
def test_the_watermark_is_an_option(world, ratio, spills):
    world.watch(high_watermark_ratio=ratio)
    backend = world.open()
    filled(backend)
    world.extra = LIMIT // 2 - backend._maintenance.heap_bytes
    maintain(backend)
    assert bool(on_disk(backend)) == spills


@pytest.mark.parametrize(("ratio", "groups"), [(0.1, 1), (0.5, 4), (0.9, 8)])
def test_the_share_of_a_pass_is_an_option(world, ratio, groups):
    world.watch(spill_size_ratio=ratio)
    backend = world.open()
    filled(backend)
    world.extra = LIMIT // 2
    maintain(backend)
    assert len(on_disk(backend)) == groups


@pytest.mark.parametrize(("interval_ms", "spills"), [(10_000, True), (30_000, False)])
def test_the_interval_of_the_clock_is_an_option(world, interval_ms, spills):
    world.watch(check_interval_ms=interval_ms)
    backend = world.open()
    filled(backend)
    maintain(backend)
    world.extra = LIMIT // 2 - backend._maintenance.heap_bytes - 100
    world.monitor.check()
    world.extra += 200
    world.ms += 10_000
    maintain(backend)
    assert bool(on_disk(backend)) == spills


@pytest.mark.parametrize(("start", "end", "loads"), [(0.03, 0.05, 2), (0.03, 0.08, 4), (0.02, 0.08, 0)])
def test_where_loading_starts_and_ends_are_options(world, start, end, loads):
    world.watch(load_start_ratio=start, load_end_ratio=end)
    backend = world.open()
    filled(backend)
    backend.spill_now(GROUPS[2:])
    world.ms += 60_000
    maintain(backend)
    assert backend.stats().loads == loads


def test_short_pauses_do_not(world):
    backend = world.open()
    filled(backend)
    maintain(backend)
    world.pause(1_500)
    world.ms += 60_000
    maintain(backend)
    assert on_disk(backend) == []


def test_what_is_cold_is_spilled_first(world):
    backend = world.open()
    filled(backend)
    for _ in range(50):
        for key_group in (0, 1, 2, 3, 4, 6):
            backend.enter(key_group)
    backend.commit()
    world.extra = LIMIT // 2
    maintain(backend)
    assert on_disk(backend) == [5, 7]


def test_little_on_the_heap_loads_up_to_a_mark_and_no_further(world):
    world.watch(load_start_ratio=0.02, load_end_ratio=0.05)
    backend = world.open()
    filled(backend)
    backend.spill_now(GROUPS)
    world.ms += 60_000
    maintain(backend)
    stats = backend.stats()
    assert stats.reason == "little on the heap"
    assert 0.03 * LIMIT < stats.heap_bytes <= 0.05 * LIMIT
    assert stats.loads == 4
    loaded = on_disk(backend)
    for _ in range(5):
        world.ms += 60_000
        maintain(backend)
        assert on_disk(backend) == loaded


def test_what_was_spilled_is_not_loaded_while_the_heap_is_not_nearly_empty(world):
    world.watch(load_start_ratio=0.1, load_end_ratio=0.3)
    backend = world.open()
    filled(backend, per_group=3000)
    maintain(backend)
    world.extra = int(LIMIT * 0.55) - backend._maintenance.heap_bytes
    maintain(backend)
    spilled = on_disk(backend)
    world.extra = 0
    for _ in range(5):
        world.ms += 60_000
        maintain(backend)
    assert on_disk(backend) == spilled != []


def test_state_that_was_deleted_makes_room_to_load(world):
    world.watch(load_start_ratio=0.1, load_end_ratio=0.3)
    backend = world.open()
    filled(backend, per_group=3000)
    backend.spill_now([6, 7])
    for key_group in range(6):
        backend.enter(key_group)
        for number in range(3000):
            backend.context.key = (f"{key_group}-{number}",)
            backend.value_state(backend._states["count"].heap.descriptor).clear()
    backend.commit()
    world.ms += 60_000
    maintain(backend)
    assert on_disk(backend) == []
    assert len(everything(backend)) == 6000


def test_one_monitor_spills_the_coldest_of_all_shards_and_those_at_rest_too(world):
    busy, idle = world.open(), world.open()
    filled(idle)
    filled(busy)
    world.ms += 600_000
    for _ in range(100):
        for key_group in GROUPS:
            busy.enter(key_group)
    busy.commit()
    world.extra = LIMIT // 2
    maintain(busy)
    assert on_disk(busy) == []
    assert len(on_disk(idle)) == 4
    assert len(everything(idle)) == 8000


def test_a_shard_that_works_is_left_to_move_its_groups_itself(world):
    busy, other = world.open(), world.open()
    filled(other)
    filled(busy)
    other.enter(3)
    for _ in range(100):
        for key_group in GROUPS:
            busy.enter(key_group)
    world.extra = LIMIT // 2
    maintain(busy)
    assert on_disk(other) == []
    maintain(other)
    assert on_disk(other) != []


def test_a_state_that_another_shard_declares_while_its_groups_are_weighed_fails_nobody(world, monkeypatch):
    """The monitor weighs all shards in the thread of one, and another thread may begin a query at that moment."""
    beginning, working = world.open(), world.open()
    filled(working)
    bytes_of, declared = StateSizes.bytes_of, []

    def bytes_and_a_state(sizes, key_group):
        if not declared and sizes is beginning._states["count"].sizes:
            declared.append(beginning.value_state(replace(COUNT, name="late")))
        return bytes_of(sizes, key_group)

    monkeypatch.setattr(StateSizes, "bytes_of", bytes_and_a_state)
    beginning._maintenance.heap_groups()
    assert declared
    assert len(beginning._maintenance.heap_groups()) == len(GROUPS)


def test_pages_of_spill_files_that_bring_it_close_to_its_limit_are_let_go_of(world, monkeypatch):
    backend = world.open()
    filled(backend)
    backend.spill_now(GROUPS)
    forgotten = []
    monkeypatch.setattr(backend._migrator.files, "forget_pages", lambda: forgotten.append(1))
    world.mapped = int(LIMIT * 0.8)
    maintain(backend)
    assert forgotten == []
    world.mapped = int(LIMIT * 0.9)
    maintain(backend)
    assert forgotten != []


def test_the_pages_of_all_shards_are_let_go_of(world, monkeypatch):
    busy, idle = world.open(), world.open()
    filled(busy)
    forgotten = []
    for name, backend in (("busy", busy), ("idle", idle)):
        monkeypatch.setattr(backend._migrator.files, "forget_pages", lambda name=name: forgotten.append(name))
    world.mapped = int(LIMIT * 0.95)
    maintain(busy)
    assert sorted(forgotten) == ["busy", "idle"]


def test_reads_have_mapped_pages_checked_without_waiting_for_maintenance(world, monkeypatch):
    backend = world.open()
    filled(backend)
    backend.spill_now(GROUPS)
    backend.enter(0)
    forgotten = []
    monkeypatch.setattr(backend._migrator.files, "forget_pages", lambda: forgotten.append(1))
    world.mapped = int(LIMIT * 0.95)
    touches = world.monitor.most_touches
    assert touches == LIMIT // 16 // 2 // (64 << 10)
    for number in range(touches):
        backend.context.key = (f"0-{number}",)
        backend.value_state(COUNT).get()
    # Each read touches a leaf and two branches.
    assert len(forgotten) in (2, 3)


def test_a_process_that_needs_more_than_half_of_its_limit_at_rest_is_told_the_least_limit(tmp_path):
    world = World(tmp_path, extra=int(LIMIT * 0.8))
    with pytest.warns(RuntimeWarning, match=r"memory-limit leaves .* more than half.* at least 160,000,000\."):
        world.watch()
    backend = world.open()
    filled(backend)
    maintain(backend)
    assert on_disk(backend) == list(GROUPS)
    assert len(everything(backend)) == 8000
    backend.close()


def test_one_that_needs_half_is_not(tmp_path):
    world = World(tmp_path, extra=LIMIT // 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.watch()


def test_a_limit_below_what_the_process_needs_at_rest_is_refused(tmp_path):
    world = World(tmp_path, extra=LIMIT + 1)
    with pytest.raises(
        OptionError, match=r"memory-limit leaves this process 100,000,000 bytes, and it uses 100,000,001"
    ):
        world.watch()


def test_a_watermark_below_what_the_process_needs_at_rest_spills_all_and_goes_on(world):
    world.extra = int(LIMIT * 0.6)
    with pytest.warns(RuntimeWarning, match="more than half"):
        backend = world.open()
    filled(backend)
    for _ in range(40):
        world.ms += 60_000
        maintain(backend)
    assert on_disk(backend) == list(GROUPS)
    put(backend, 3, ["new"])
    assert len(everything(backend)) == 8001
