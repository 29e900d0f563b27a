"""The map of key groups by temperature, where a user finds it."""

import pytest

from millpond.errors import OptionError
from millpond.state import Harness
from millpond.state.keygroups import key_groups_of

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
