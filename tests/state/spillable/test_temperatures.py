"""The map of key groups by temperature: what it says, and where a user finds it."""

import pytest

from millpond.errors import OptionError
from millpond.state import Harness
from millpond.state.spi import StateDescriptor, StateKind
from millpond.state.types.key_groups import key_groups_of
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer
from tests.state.spillable.conftest import GROUPS, filled, put
from tests.state.spillable.restless import open_spillable

SEEN = StateDescriptor("seen", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int))
SPILLABLE = {"state.backend.type": "spillable", "state.backend.spillable.chunk-size": "1mb"}


class Words:
    def open(self, states):
        self.seen = states.value("seen", int, default=0)
        self.last = states.list("last", str)

    def process(self, key, record, context):
        self.seen.update(self.seen.get() + 1)
        self.last.append(record)


@pytest.mark.parametrize(
    "cache",
    [
        {},
        {"state.backend.cache.max-entries-num": "10"},
        {"state.backend.cache": "write-back", "state.backend.cache.max-size": "10"},
    ],
    ids=["no cache", "lru", "write-back"],
)
def test_a_harness_has_the_map_of_all_shards(cache):
    with Harness(Words, key=lambda word: word, key_type=str, shards=2, options=SPILLABLE | cache) as harness:
        harness.process_many(["ann"] * 50 + [f"word{number}" for number in range(300)])
        harness.checkpoint()
        found = harness.temperatures()
        assert sorted(set(found["key_group"].to_pylist())) == [*range(128)]
        assert set(found["state"].to_pylist()) == {"seen", "last"}
        assert set(found["place"].to_pylist()) == {"heap"}
        hottest = max(found.to_pylist(), key=lambda row: row["rate"])
        groups = key_groups_of(0, 2, 128)
        assert (hottest["key_group"] in groups) == any(
            shard.key_groups == groups and ("ann",) in shard.backend.cells("seen", hottest["key_group"]).keys
            for shard in harness._shards.shards
        )


def test_a_backend_that_moves_nothing_has_no_map():
    with (
        Harness(Words, key=lambda word: word, key_type=str) as harness,
        pytest.raises(OptionError, match=r"state\.backend\.type = spillable"),
    ):
        harness.temperatures()


def test_the_map_has_a_row_for_every_key_group_and_state(world):
    places = [world.folder / name for name in ("a", "b")]
    world.watch(paths=tuple(places))
    backend = world.open()
    seen = backend.value_state(SEEN)
    filled(backend)
    for key_group in GROUPS:
        backend.enter(key_group)
        for number in range(1000):
            backend.context.key = (f"{key_group}-{number}",)
            seen.update(number)
    backend.commit()
    before = {(row["key_group"], row["state"]): row for row in backend.temperatures().to_pylist()}
    assert len(before) == 16
    assert {row["place"] for row in before.values()} == {"heap"}
    assert before[2, "count"]["bytes"] == pytest.approx(1_150_000, rel=0.1)
    assert before[2, "seen"]["bytes"] < 300_000
    backend.spill_now([2, 3])
    # What is written again and again is not counted again and again.
    for _ in range(5):
        put(backend, 2, [f"2-{number}" for number in range(1000)])
        backend.flush_now()
    after = {(row["key_group"], row["state"]): row for row in backend.temperatures().to_pylist()}
    assert {at for at, row in after.items() if row["place"] == "disk"} == {
        (g, s) for g in (2, 3) for s in ("count", "seen")
    }
    assert [after[group, "seen"]["path"] for group in (2, 3)] == [str(place) for place in places]
    assert after[1, "seen"]["path"] is None
    sizes = {group: [after[group, state]["bytes"] for state in ("count", "seen")] for group in (2, 3)}
    assert sum(map(sum, sizes.values())) == pytest.approx(backend.stats().disk_bytes, abs=4)
    for count, of_seen in sizes.values():
        assert 20 < count / of_seen < 100
    assert after[2, "count"]["rate"] == after[2, "seen"]["rate"] > after[3, "seen"]["rate"]


def test_a_backend_without_states_has_an_empty_map(tmp_path):
    backend = open_spillable(GROUPS, tmp_path)
    assert backend.temperatures().num_rows == 0
    assert backend.temperatures().column_names == ["key_group", "state", "place", "path", "bytes", "rate"]
    backend.close()


def test_the_rate_of_a_group_that_is_not_asked_for_halves_in_a_minute(world):
    backend = world.open()
    for _ in range(64):
        backend.enter(2)
    assert backend.temperatures()["rate"][2].as_py() == 64
    world.ms += 120_000
    assert backend.temperatures()["rate"][2].as_py() == 16
