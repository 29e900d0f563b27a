"""The heap that spills: where it differs from the heap."""

import random
import threading

import pyarrow as pa
import pytest

from millpond.errors import UnavailableError
from millpond.state.backend.batch_access import ManyKeys, clear_many, get_many, update_many
from millpond.state.backend.protocols import Cells
from millpond.state.spi import ABSENT, StateDescriptor, StateKind
from millpond.state.spillable import maintenance, migrator
from millpond.state.spillable.migration import STEP_CELLS
from millpond.state.spillable.spill_file import SpillFile
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer
from millpond.state.types.timer_states import TIMERS
from tests.state.spillable.conftest import COUNT, GROUPS, LIMIT, everything, filled, maintain, on_disk, put
from tests.state.spillable.restless import open_spillable

SPENT = StateDescriptor("spent", StateKind.MAP, pa.schema([("n", pa.int64())]), pa.schema([("item", pa.string())]))
SEEN = StateDescriptor("seen", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int))


class Ticking:
    """A clock that goes on by a millisecond whenever it is read."""

    def __init__(self):
        self.ns = 0

    def __call__(self):
        self.ns += 1_000_000
        return self.ns


def test_a_key_group_is_on_the_heap_or_on_disk_with_all_its_states(world):
    backend = world.open()
    seen = backend.value_state(SEEN)
    filled(backend)
    backend.spill_now([2])
    assert [type(state.heap.tables.live[2]) is dict for state in backend._states.values()] == [False, False]
    backend.enter(2)
    backend.context.key = ("x",)
    seen.update(7)
    backend.load_now([2])
    assert [type(state.heap.tables.live[2]) is dict for state in backend._states.values()] == [True, True]
    assert seen.get() == 7
    assert backend._migrator.spilled == {}


def test_a_state_that_is_declared_late_is_on_disk_where_its_key_group_is(world):
    backend = world.open()
    filled(backend)
    backend.spill_now([2])
    backend.enter(2)
    seen = backend.value_state(SEEN)
    backend.context.key = ("x",)
    seen.update(7)
    backend.flush_now()
    assert seen.get() == 7
    assert backend._migrator.spilled[2].file.size(backend._migrator.spilled[2].database).cells == 1001


def test_a_large_key_group_fills_its_pages_whatever_the_order_of_its_keys(world):
    """Put in one after the other they would leave a third of each page empty."""
    backend = world.open()
    names = [f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" for number in range(60_000)]
    backend.load(SEEN, Cells([3] * len(names), [(name,) for name in names], None, [200] * len(names)))
    backend.spill_now([3])
    spilled = backend._migrator.spilled[3]
    size, table = spilled.file.size(spilled.database), backend._states["seen"].heap.tables.live[3]
    assert size.cells == len(names)
    # Beside its bytes a cell has ten of LMDB's own, and the branches are a hundredth.
    assert size.bytes < 1.05 * (table.bytes_now() + 10 * len(names))
    backend.load_now([3])
    assert sorted(backend.cells("seen", 3).keys) == sorted((name,) for name in names)


def test_what_changes_while_a_group_moves_moves_with_it(world, monkeypatch):
    monkeypatch.setattr(maintenance, "BUSY_SLICE_MS", 9)
    backend = world.open(clock_ns=Ticking())
    filled(backend, per_group=3 * STEP_CELLS)
    expected = everything(backend)
    backend._migrator.plan([1], [], "test")
    looked = 0
    while on_disk(backend) == []:
        key = f"1-{looked}"
        put(backend, 1, [key, f"new-{looked}"], length=10)
        expected |= {(each,): each.ljust(10, ".") for each in (key, f"new-{looked}")}
        backend.enter(1)
        backend.context.key = (f"1-{5999 - looked}",)
        backend.value_state(COUNT).clear()
        del expected[f"1-{5999 - looked}",]
        backend.commit().release()
        looked += 1
    assert looked > 3
    assert everything(backend) == expected
    backend._migrator.plan([], [1], "test")
    while on_disk(backend) != []:
        put(backend, 1, [f"back-{looked}"], length=10)
        expected[f"back-{looked}",] = f"back-{looked}".ljust(10, ".")
        backend.rollback() if looked % 2 else backend.commit().release()
        if looked % 2:
            del expected[f"back-{looked}",]
        looked += 1
    assert everything(backend) == expected


def test_groups_are_spilled_though_changes_fill_the_buffer_as_fast_as_they_are_written(world, monkeypatch):
    """Else memory grew without limit while ten million timers were set, most of them in groups on disk."""
    monkeypatch.setattr(maintenance, "_BUFFER_SHARE", LIMIT)
    monkeypatch.setattr(migrator, "FLUSH_CELLS", 1)
    clock = Ticking()
    backend = world.open(clock_ns=clock)
    filled(backend, per_group=100)
    backend.spill_now([2])
    for step in range(20):
        put(backend, 2, [f"2-{number}" for number in range(100)], length=10)
        if step == 0:
            backend._migrator.plan([1], [], "test")
        backend.commit().release()
        clock.ns += 1_000_000_000
        maintain(backend)
        assert backend._maintenance._buffers_much()
    assert on_disk(backend) == [1, 2]


def test_the_changed_entries_of_a_map_are_counted_exactly(tmp_path):
    backend = open_spillable(GROUPS, tmp_path)
    spent = backend.map_state(SPENT)
    backend.spill_now([2])
    backend.enter(2)
    draw = random.Random(7)
    for step in range(2_000):
        backend.context.key = (f"user-{draw.randrange(5)}",)
        item = (f"item-{draw.randrange(5)}",)
        chosen = draw.randrange(12)
        if chosen < 6:
            spent.put(item, (step,))
        elif chosen < 9:
            spent.remove(item)
        elif chosen == 9:
            spent.clear()
        elif chosen == 10:
            backend.rollback() if draw.random() < 0.5 else backend.commit().release()
            backend.enter(2)
        else:
            backend._states["spent"].heap.tables.live[2].flush(draw.randrange(1, 4))
        table = backend._states["spent"].heap.tables.live[2]
        assert table.changed_count() == sum(map(len, table.changed.values()))
    backend.close()


def test_a_look_takes_no_longer_than_its_slice_and_leaves_the_stream_as_long_again(world, monkeypatch):
    clock = Ticking()
    backend = world.open(clock_ns=clock)
    filled(backend, per_group=3 * STEP_CELLS)
    backend._migrator.plan(GROUPS, [], "test")
    maintain(backend)
    first = backend.stats()
    assert backend._maintenance.moving
    assert first.longest_block_ms < 2 * maintenance.BUSY_SLICE_MS + 20
    at_rest = backend._maintenance._rest_until_ns - clock.ns
    assert at_rest > 0
    done = backend._migrator.spill_ns
    maintain(backend)
    assert backend._migrator.spill_ns == done
    clock.ns += at_rest
    maintain(backend)
    assert backend._migrator.spill_ns > done


def test_spilling_keeps_to_its_bytes_a_second_below_the_hard_mark(world):
    world.watch(spill_bytes_per_second=1 << 20, spill_size_ratio=0.9)
    backend = world.open()
    filled(backend, per_group=2000)
    world.extra = LIMIT // 2
    maintain(backend)
    maintain(backend)
    assert len(on_disk(backend)) <= 1
    for _ in range(60):
        world.ms += 1_000
        maintain(backend)
    assert len(on_disk(backend)) == 8


def test_above_the_hard_mark_it_does_not_wait_for_the_disk_s_share(world):
    world.watch(spill_bytes_per_second=1 << 20)
    backend = world.open()
    filled(backend, per_group=2000)
    world.extra = int(LIMIT * 0.8)
    maintain(backend)
    assert on_disk(backend) == list(GROUPS)


def test_changed_cells_are_written_once_they_are_many(world):
    backend = world.open()
    filled(backend)
    backend.spill_now([1])
    put(backend, 1, [f"more-{number}" for number in range(100)])
    maintain(backend)
    put(backend, 1, [f"more-{number}" for number in range(100)])
    backend.commit()
    maintain(backend)
    assert backend._migrator.changed_cells() == 100
    for start in range(0, 10_000, 1000):
        put(backend, 1, [f"more-{number}" for number in range(start, start + 1000)])
        backend.commit()
        maintain(backend)
    assert backend._migrator.changed_cells() * 1100 < LIMIT // 16 + 2_000_000
    assert len(everything(backend)) == 18_000


def test_no_write_of_changes_touches_more_places_than_may_be(world, monkeypatch):
    backend = world.open()
    filled(backend)
    backend.spill_now([1])
    backend.enter(1)
    for number in range(0, 1000, 2):
        backend.context.key = (f"1-{number}",)
        backend.value_state(COUNT).clear()
    put(backend, 1, [f"more-{number}" for number in range(1000)])
    file = backend._migrator.spilled[1].file
    written, write = [], file.write

    def noting(database, kept, gone=(), **named):
        written.append(len(kept) + len(gone))
        return write(database, kept, gone, **named)

    monkeypatch.setattr(file, "write", noting)
    backend.flush_now()
    assert sum(written) == 1500
    assert max(written) == world.monitor.most_touches < 100
    table = backend._states["count"].heap.tables.live[1]
    assert table.cells_written == file.size(backend._migrator.spilled[1].database).cells == 1500


def test_a_checkpoint_in_the_background_is_given_up_when_key_groups_are_spilled(world):
    backend = world.open()
    snapshot = filled(backend)
    world.extra = LIMIT // 2
    maintain(backend)
    assert on_disk(backend) != []
    with pytest.raises(UnavailableError, match=r"given up because state had to be spilled.*cancel\.checkpoint"):
        list(snapshot.changes())


def test_or_waited_for(world):
    world.watch(cancel_checkpoint=False)
    backend = world.open()
    snapshot = filled(backend)
    world.extra = LIMIT // 2
    maintain(backend)
    assert on_disk(backend) == []
    assert sum(len(cells) for _, cells in snapshot.changes()) == 8000
    snapshot.release()
    world.extra += LIMIT // 64
    maintain(backend)
    assert on_disk(backend) != []


def test_but_not_above_the_hard_mark_where_both_go_on(world):
    world.watch(cancel_checkpoint=False)
    backend = world.open()
    snapshot = filled(backend)
    world.extra = int(LIMIT * 0.8)
    maintain(backend)
    assert on_disk(backend) == list(GROUPS)
    assert sum(len(cells) for _, cells in snapshot.changes()) == 8000


def test_a_commit_that_was_not_let_go_of_survives_a_spill_that_is_asked_for(world):
    backend = world.open()
    snapshot = filled(backend)
    backend.spill_now(GROUPS)
    for key_group in GROUPS:
        put(backend, key_group, [f"{key_group}-0", "new"], length=5)
    backend.commit()
    backend.load_now([1, 2])
    assert len(snapshot.cells("count", 1)) == len(snapshot.cells("count", 5)) == 1000
    assert sum(len(cells) for _, cells in snapshot.changes()) == 8000


def test_a_snapshot_is_read_in_another_thread_while_groups_move(world):
    backend = world.open()
    snapshot = filled(backend)
    expected = everything(backend)
    found, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            whole = {}
            for key_group in GROUPS:
                pairs = snapshot.raw_cells("count", key_group)
                if pairs is None:
                    cells = snapshot.cells("count", key_group)
                else:
                    cells = backend._states["count"].form.cells(key_group, pairs)
                whole |= dict(zip(cells.keys, cells.values, strict=True))
            found.append(whole)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(40):
        backend.spill_now([turn % 8, (turn * 3) % 8])
        put(backend, turn % 8, [f"{turn % 8}-{number}" for number in range(0, 1000, 7)], length=8)
        backend.flush_now()
        backend.load_now([(turn + 1) % 8])
        backend.commit().release()
    stop.set()
    reader.join()
    assert found
    assert all(whole == expected for whole in found)


def test_writing_what_changed_counts_against_the_bytes_a_second(world):
    world.watch(spill_bytes_per_second=1 << 20)
    backend = world.open()
    filled(backend)
    backend.spill_now([1])
    assert backend._migrator._budget.allows()
    put(backend, 1, [f"more-{number}" for number in range(3000)])
    backend.flush_now()
    world.ms += 1_000
    assert not backend._migrator._budget.allows()
    world.ms += 2_000
    assert backend._migrator._budget.allows()


def test_closing_leaves_nothing_behind(world):
    backend = world.open()
    filled(backend)
    backend.spill_now(GROUPS)
    backend.close()
    backend.close()
    assert list(world.folder.iterdir()) == []


def test_written_cells_reach_a_spilled_group_whatever_is_entered(world):
    backend = world.open()
    filled(backend)
    backend.spill_now([3])
    backend.enter(0)
    backend.write("count", Cells([3, 3], [("3-1",), ("3-2",)], None, ["changed", ABSENT]))
    found = everything(backend)
    assert found["3-1",] == "changed"
    assert ("3-2",) not in found
    assert backend.rollback()
    assert len(everything(backend)) == 8000


def test_batch_access_is_counted_and_runs_maintenance(world):
    backend = world.open()
    state = backend.value_state(COUNT)
    many = ManyKeys.of([(f"{group}-{number}",) for group in GROUPS for number in range(1000)], sorted([*GROUPS] * 1000))
    update_many(backend, state, many, ["." * 1000] * len(many))
    backend.commit()
    # Each was asked for and changed.
    assert backend.temperatures()["rate"].to_pylist() == [2000] * 8
    world.extra = LIMIT // 2
    assert get_many(backend, state, many) == ["." * 1000] * len(many)
    clear_many(backend, state, ManyKeys.of([("0-1",)], [0]))
    assert on_disk(backend)
    assert len(everything(backend)) == 7999
    backend.rollback()
    assert len(everything(backend)) == 8000


def test_many_keys_at_once_keep_other_threads_from_moving_their_groups(world):
    backend = world.open()
    filled(backend)
    state = backend.value_state(COUNT)

    def helped():
        helper = threading.Thread(target=lambda: backend._maintenance.help_along(1 << 60, urgent=True))
        helper.start()
        helper.join()
        return on_disk(backend)

    get_many(backend, state, ManyKeys.of([("3-1",)], [3]))
    backend._maintenance.move([3], [], "asked for")
    assert helped() == []
    backend.commit().release()
    assert helped() == [3]


def test_keys_too_long_for_the_file_are_known_while_they_wait_to_be_written(world):
    """Their places have only a digest of them."""
    backend = world.open()
    seen = backend.value_state(SEEN)
    filled(backend)
    backend.spill_now([2])
    keys = [("short",), ("long" * 100,), ("longer" * 200,)]
    for written in (False, True):
        backend.enter(2)
        for number, key in enumerate(keys):
            backend.context.key = key
            seen.update(number + written)
        assert backend.stats().disk_groups == 1
        waiting = dict(zip(*cells_of(backend), strict=True))
        backend.flush_now()
        assert (
            dict(zip(*cells_of(backend), strict=True))
            == waiting
            == {key: number + written for number, key in enumerate(keys)}
        )
    backend.context.key = keys[1]
    seen.clear()
    assert keys[1] not in cells_of(backend)[0]
    backend.load_now([2])
    assert dict(zip(*cells_of(backend), strict=True)) == {keys[0]: 1, keys[2]: 3}


def test_what_another_thread_read_before_a_flush_is_not_taken_after_it(world):
    backend = world.open()
    seen = backend.value_state(SEEN)
    filled(backend)
    backend.spill_now([2])
    backend.enter(2)
    backend.context.key = ("ann",)
    seen.update(1)
    backend.flush_now()
    table = backend._states[SEEN.name].heap.tables.live[2]
    read = table._read

    def overtaken(database, at):
        """Between the reader's look into the file and its answer, the stream changes the value and writes it."""
        table._read = read
        found = read(database, at)
        seen.update(2)
        backend.flush_now()
        return found

    table._last_read.cell = (None, b"", None, None)
    table._read = overtaken
    assert table.get("ann") == 1
    assert table.get("ann") == seen.get() == 2


def cells_of(backend):
    cells = backend.cells(SEEN.name, 2)
    return cells.keys, cells.values


def test_a_timer_that_is_asked_for_and_deleted_is_read_from_disk_once(world, monkeypatch):
    backend = world.open()
    filled(backend)
    timers = backend.map_state(TIMERS)
    backend.enter(2)
    for user in ("ann", "bob"):
        backend.context.key = (user,)
        timers.put((7,), (True,))
    backend.flush_now()
    backend.commit().release()
    backend.spill_now([2])
    backend.enter(2)
    table, reads = timers.tables.live[2], []
    get, scan = SpillFile.get, SpillFile.scan
    monkeypatch.setattr(SpillFile, "get", lambda *given: reads.append("get") or get(*given))
    monkeypatch.setattr(SpillFile, "scan", lambda *given, **named: reads.append("scan") or scan(*given, **named))
    for user in ("ann", "bob"):
        backend.context.key = (user,)
        assert timers.contains((7,))
        timers.remove((7,))
        assert not timers.contains((7,))
    assert reads == ["get", "get"]
    ann, bob = (old for (_, old) in timers.tables.open.maps[2].values())
    assert ann == (True,)
    assert ann is bob, "equal values in a row take memory once"
    monkeypatch.undo()
    backend.flush_now()
    assert table.copy() == {}
    assert backend.rollback()
    assert backend.cells(TIMERS.name, 2).keys == [("ann",), ("bob",)]


def test_an_entry_is_read_again_after_it_was_written(world):
    backend = world.open()
    filled(backend)
    spent = backend.map_state(SPENT)
    backend.enter(2)
    backend.spill_now([2])
    backend.enter(2)
    backend.context.key = ("ann",)
    for number in range(3):
        spent.put(("tea",), (number,))
        assert spent.get(("tea",)) == (number,)
        backend.flush_now()
        assert spent.get(("tea",)) == (number,)
    spent.remove(("tea",))
    backend.flush_now()
    assert spent.get(("tea",)) is None
    assert not spent.exists()
