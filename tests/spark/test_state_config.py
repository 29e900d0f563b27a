"""What a user may say of caches in front of keyed state, and that no cache is part of what state is."""

import pickle
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import OptionError
from millpond.spark import StateConfig
from millpond.spark.runtime.shard_backend import open_shard_backend
from millpond.state import Lru, TwoLayer, WriteBack
from millpond.state.checkpoint import Shard, new_manifest
from millpond.state.spi import CacheHooks, StateDescriptor, StateKind
from millpond.state.types.key_groups import key_group_of


@pytest.mark.parametrize(
    ("given_names", "options", "cache"),
    [
        ({"cache": "none"}, {"state.backend.cache": "none"}, None),
        ({"max_entries": 10}, {"state.backend.cache.max-entries-num": "10"}, Lru(max_entries=10)),
        ({"cache": "lru", "max_bytes": "1kb"}, {"state.backend.cache.max-bytes": "1024"}, Lru(max_bytes=1024)),
        (
            {"cache": "write-back", "max_size": 5},
            {"state.backend.cache": "WRITE_BACK", "state.backend.cache.max-size": 5},
            WriteBack(max_size=5),
        ),
        (
            {"cache": "two-layer", "max_size": 5, "max_size_l2": 50},
            {
                "state.backend.cache": "two-layer",
                "state.backend.cache.max-size": "5",
                "state.backend.cache.max-size-l2": "50",
            },
            TwoLayer(max_size=5, max_size_l2=50),
        ),
    ],
)
def test_names_and_option_strings_say_the_same(given_names, options, cache):
    for config in (StateConfig(**given_names), StateConfig(options=options)):
        assert config.parsed.cache == cache
        assert pickle.loads(pickle.dumps(config)).opened_with == config.opened_with


@pytest.mark.parametrize(
    ("given_names", "said"),
    [
        ({"cache": "lru"}, "lru needs state.backend.cache.max-entries-num or state.backend.cache.max-bytes"),
        ({"cache": "two-layer", "max_size": 5}, "needs state.backend.cache.max-size-l2|needs .* and .*max-size-l2"),
        ({"cache": "write-back", "max_size": 5, "max_entries": 1}, "max-entries-num' has no effect"),
        ({"cache": "write-bcak", "max_size": 5}, "one of none, lru, write-back, two-layer"),
        ({"max_size": 5}, "max-size' has no effect with state.backend.cache = none"),
        ({"hooks": CacheHooks()}, "hooks have no effect"),
        ({"max_entries": 1, "options": {"State.Backend.Cache.max-entries-num": 2}}, "say the same twice"),
        ({"backend": "heap", "options": {"state.backend.type": "heap"}}, "say the same twice"),
    ],
)
def test_what_a_cache_would_ignore_or_lacks_is_refused(given_names, said):
    with pytest.raises(OptionError, match=said):
        StateConfig(**given_names)


def test_other_hooks_are_not_taken_for_the_ones_that_a_backend_was_opened_with():
    sizes = {"cache": "write-back", "max_size": 5}
    assert StateConfig(**sizes).opened_with == StateConfig(**sizes).opened_with
    first, second = (StateConfig(**sizes, hooks=CacheHooks(on_get=lambda _, value: value)) for _ in range(2))
    assert first.opened_with != second.opened_with


KEY = pa.schema([("user", pa.string())])
COUNT = StateDescriptor("count", StateKind.VALUE, pa.schema([("n", pa.int64())]))
SEEN = StateDescriptor("seen", StateKind.MAP, pa.schema([("n", pa.int64())]), pa.schema([("at", pa.int64())]))
CONFIGS = [
    StateConfig(cache="none"),
    StateConfig(cache="lru", max_entries=2),
    StateConfig(cache="write-back", max_size=2),
    StateConfig(cache="two-layer", max_size=1, max_size_l2=2),
    StateConfig(backend="rocksdb", cache="two-layer", max_size=2, max_size_l2=1),
    StateConfig(backend="rocksdb", cache="lru", max_bytes="1kb"),
]
_changes = st.lists(st.tuples(st.integers(0, 7), st.one_of(st.none(), st.integers(0, 99))), max_size=12)
_steps = st.tuples(st.sampled_from(["kept", "kept", "failed", "lost", "crashed"]), st.integers(0, 5), _changes)


@given(st.integers(0, 5), st.lists(_steps, max_size=8))
@settings(max_examples=60, deadline=None)
def test_state_is_the_same_whatever_is_cached_over_batches_failures_and_restarts(first, steps):
    """A dictionary beside it. Every restore is into the backend and cache that the step says."""
    manifest = new_manifest("lineage", 0, 1, 128, KEY)
    durable, segments, model = manifest, {}, {}

    def opened(config):
        shard = Shard(durable, open_shard_backend(config.parsed, durable.key_groups))
        shard.restore(segments)
        return shard

    shard = opened(CONFIGS[first])
    for number, (ending, config, changes) in enumerate(steps):
        if not shard.begin_at(durable):
            shard.backend.close()
            shard = opened(CONFIGS[config])
            assert shard.begin_at(durable)
        after = dict(model)
        shard.declare(COUNT)
        shard.declare(SEEN)
        count, seen = shard.backend.value_state(COUNT), shard.backend.map_state(SEEN)
        for user, n in changes:
            key = (f"user {user}",)
            shard.backend.enter(key_group_of(key, [pa.string()], 128))
            shard.backend.context.key = key
            assert count.get() == after.get(user)
            assert seen.get((0,)) == after.get(user)
            if n is None:
                count.clear()
                seen.clear()
                after.pop(user, None)
            else:
                count.update((n,))
                seen.put((0,), (n,))
                after[user] = (n,)
        if ending == "failed":
            shard.rollback()
            continue
        commit = shard.commit(f"token {number}")
        if ending != "lost":
            durable, model = commit.manifest, after
            segments = {at: data for at, data in {**segments, **commit.segments}.items() if at not in commit.dropped}
        if ending == "crashed":
            shard.backend.close()
            shard = opened(CONFIGS[config])
    shard.backend.close()
    shard = opened(CONFIGS[0])
    found = {}
    for group in range(128):
        for name in (COUNT.name, SEEN.name):
            if any(state.name == name for state in shard.declared):
                cells = shard.backend.cells(name, group)
                found |= {(name, key): value for key, value in zip(cells.keys, cells.values, strict=True)}
    assert found == {(name, (f"user {user}",)): n for user, n in model.items() for name in ("count", "seen")}


@pytest.mark.parametrize("sizes", [{"cache": "write-back"}, {"cache": "two-layer", "max_size_l2": 5}], ids=str)
def test_a_cache_is_still_warm_in_the_next_batch_and_hooks_hear_of_it(sizes):
    hits = []
    config = StateConfig(max_size=5, hooks=CacheHooks(hit_tracker=hits.append), **sizes)
    manifest = new_manifest("lineage", 0, 1, 128, KEY)
    shard = Shard(manifest, open_shard_backend(config.parsed, manifest.key_groups))
    for number in range(3):
        assert shard.begin_at(manifest)
        shard.declare(COUNT)
        count = shard.backend.value_state(COUNT)
        shard.backend.enter(3)
        shard.backend.context.key = ("ann",)
        assert count.get() == ((number - 1,) if number else None)
        count.update((number,))
        manifest = shard.commit(f"token {number}").manifest
    shard.backend.close()
    assert hits == [False, True, True]


def test_a_hook_that_fails_while_dirty_entries_are_written_fails_the_commit_and_nothing_is_taken():
    def refuse(_key, value):
        if value == (13,):
            raise ValueError("thirteen is not welcome")
        return value

    config = StateConfig(cache="write-back", max_size=5, hooks=CacheHooks(on_update=refuse))
    manifest = new_manifest("lineage", 0, 1, 128, KEY)
    shard = Shard(manifest, open_shard_backend(config.parsed, manifest.key_groups))
    for n in (1, 13):
        assert shard.begin_at(shard.manifest)
        shard.declare(COUNT)
        count = shard.backend.value_state(COUNT)
        shard.backend.enter(3)
        shard.backend.context.key = ("ann",)
        count.update((n,))
        if n == 1:
            manifest = shard.commit("kept").manifest
    with pytest.raises(ValueError, match="thirteen"):
        shard.commit("refused")
    shard.rollback()
    assert shard.begin_at(manifest)
    shard.backend.enter(3)
    shard.backend.context.key = ("ann",)
    assert shard.backend.value_state(COUNT).get() == (1,)
    shard.backend.close()


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1)])
def test_a_host_timeout_that_is_none_is_refused(timeout):
    with pytest.raises(OptionError, match=r"host_timeout=.*above 0"):
        StateConfig(host_timeout=timeout)
    assert StateConfig(host_timeout=None).host_timeout is None
