"""Short histories by the hundreds, each made by one seed; and faults that are planted to see that they are found.

`MILLPOND_SIMULATIONS` sets how many histories there are of each kind, `MILLPOND_TEST_SEED` where they begin.
"""

import os
from contextlib import suppress

import pyarrow as pa
import pytest

from millpond.errors import UnavailableError
from millpond.features import CLOSING_KEY, ClosingTime, encode_closing_time
from millpond.kv import Put
from millpond.spark.features.tiles.rows import CLOSING
from millpond.spark.features.tiles.writer import tile_writer
from millpond.state.checkpoint import Shard
from millpond.state.checkpoint import restoring as restoring_module
from millpond.state.checkpoint.format.segment import decode_segment
from millpond.state.checkpoint.next_manifest import Delta
from millpond.state.checkpoint.storage import files as files_module
from millpond.state.checkpoint.writer import CheckpointWriter
from tests.simulation.keyed_world import World
from tests.simulation.lists import ABORTED, DOUBLE, LOST, STALE
from tests.simulation.stored_world import StoredWorld
from tests.simulation.tile_world import TileWorld

FIRST = int(os.environ.get("MILLPOND_TEST_SEED", "0"))
HISTORIES = int(os.environ.get("MILLPOND_SIMULATIONS", "0"))
BATCHES = 5
MOST_TO_FIND = 300
"""Histories in which a planted fault must show."""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Arrow's own threads cost more than they bring where a segment has a few rows."""
    before = pa.cpu_count()
    pa.set_cpu_count(1)
    yield
    pa.set_cpu_count(before)


@pytest.fixture
def seeds(record_property):
    """The seeds of the histories, one each."""
    count = HISTORIES or 200
    print(f"{count} histories from seed {FIRST}")
    record_property("histories", count)
    return range(FIRST, FIRST + count)


def test_keyed_state_keeps_every_list_whatever_dies_where(seeds):
    batches = steps = 0
    for seed in seeds:
        world = World(seed, BATCHES)
        history = world.run()
        assert not history.faults, f"seed {seed}: {dict(history.faults)}\n" + "\n".join(world.trace)
        batches, steps = batches + history.batches, steps + len(world.trace)
    print(f"{batches} batches, {steps} steps")
    assert steps > batches


def test_a_seed_makes_one_history():
    worlds = [World(7, BATCHES), World(7, BATCHES), World(8, BATCHES)]
    for world in worlds:
        world.run()
    assert worlds[0].trace == worlds[1].trace
    assert worlds[0].store == worlds[1].store
    assert worlds[0].trace != worlds[2].trace


def without_changes(writer, version, snapshot, spool):
    return Delta(version, ())


def with_older_bases(manifest, ref, data, right=restoring_module.read_segment):
    return decode_segment(data, "a segment") if ref.base else right(manifest, ref, data)


def ahead_of_the_manifest(shard, manifest, right=Shard.begin_at):
    """Memory that is ahead is taken for what the manifest says."""
    if shard._intact and shard.manifest.version > manifest.version:
        shard.backend.acknowledge()
        shard.manifest, shard._before, shard._ended = manifest, None, False
        shard._round, shard._last_version = shard._next_round(), manifest.version
        return True
    return right(shard, manifest)


PLANTED = {
    LOST: (CheckpointWriter, "delta", without_changes),
    ABORTED: (Shard, "rollback", lambda shard: None),
    DOUBLE: (Shard, "begin_at", ahead_of_the_manifest),
    STALE: (restoring_module, "read_segment", with_older_bases),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_by_its_name(fault, monkeypatch):
    monkeypatch.setattr(*PLANTED[fault])
    for seed in range(MOST_TO_FIND):
        if World(seed, BATCHES + 2).run().faults[fault]:
            print(f"found in history {seed}")
            return
    pytest.fail(f"none of {MOST_TO_FIND} histories showed it")


@pytest.mark.filterwarnings("ignore:.*could not be deleted")
def test_checkpoints_in_files_lose_nothing_that_was_acknowledged_whatever_the_disk_does(seeds):
    failures = processes = 0
    for seed in seeds:
        world = StoredWorld(seed).run()
        assert not world.faults, f"seed {seed}: {dict(world.faults)}"
        failures, processes = failures + world.failures, processes + world.processes
    print(f"{processes} processes, {failures} checkpoints failed")
    assert failures


def test_a_fetcher_with_caches_answers_as_the_raw_events_do_whatever_write_of_tiles_fails(seeds):
    failures = answers = 0
    for seed in seeds:
        world = TileWorld(seed)
        assert world.run() == [], f"seed {seed}"
        failures, answers = failures + world.failures, answers + len(world.answers)
    print(f"{failures} writes failed, {answers} answers")
    assert failures


def forgotten(storage, manifest, _common):
    """Who was passed by deletes what he does not know."""
    for found in storage._manifests():
        if found.identity != files_module._identity(manifest):
            storage._folder.delete(found.name)


@pytest.mark.filterwarnings("ignore:.*could not be deleted")
def test_a_storage_that_deletes_too_much_is_found(monkeypatch):
    monkeypatch.setattr(files_module.FileStorage, "_delete_superfluous", forgotten)
    monkeypatch.setattr(files_module.FileStorage, "_refuse_if_passed", lambda *_: None)
    with pytest.raises(AssertionError, match=r"acknowledged"):
        list(map(StoredWorld.run, map(StoredWorld, range(MOST_TO_FIND))))


def test_a_seed_makes_one_stream_of_tiles():
    worlds = [TileWorld(5), TileWorld(5), TileWorld(6)]
    for world in worlds:
        world.run()
    assert worlds[0].answers == worlds[1].answers != worlds[2].answers


class Swallowing:
    """A store whose failed writes are taken for written."""

    def __init__(self, store):
        self.store = store

    def put_many(self, dataset, puts):
        with suppress(UnavailableError):
            self.store.put_many(dataset, puts)


def swallowing(dataset, name, store, counts):
    return tile_writer(dataset, name, Swallowing(store), counts)


def closing_first(dataset, name, store, counts):
    """The closing time is written before the tiles that it covers."""
    right = tile_writer(dataset, name, store, counts)

    def put(updates, number):
        closing = [row["amount"] for rows in updates.partitions for row in rows if row["change"] == CLOSING]
        if closing:
            row = encode_closing_time(ClosingTime(shard=0, shards=1, closed_ms=min(closing)))
            store.put_many(dataset, [Put(CLOSING_KEY, row, 0)])
        right(updates, number)

    return put


@pytest.mark.parametrize("planted", [swallowing, closing_first])
def test_a_writer_of_tiles_that_does_it_wrong_is_found(planted):
    for seed in range(MOST_TO_FIND):
        if TileWorld(seed, writer=planted).run():
            print(f"found in stream {seed}")
            return
    pytest.fail(f"none of {MOST_TO_FIND} streams showed it")
