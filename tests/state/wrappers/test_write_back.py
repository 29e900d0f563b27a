"""What both of King's caches promise, told of the single layer; and where a test is run for both, of both."""

import pytest

from millpond.errors import DataError, OptionError
from millpond.state.heap.backend import HeapBackend
from millpond.state.operator.states import States
from millpond.state.wrappers.king.two_layer import TwoLayerCache
from millpond.state.wrappers.king.write_back import WriteBackCache


def one_layer(room, **hooks):
    return WriteBackCache(room.backend, room.state, max_size=2, **hooks)


def two_layers(room, **hooks):
    return TwoLayerCache(room.backend, room.state, max_size=1, max_size_l2=1, **hooks)


both = pytest.mark.parametrize("make", [one_layer, two_layers])


@both
def test_it_is_used_like_the_state(room, make):
    cache = make(room)
    room.set_current_key("ann")
    assert not cache.exists()
    assert cache.get() is None
    cache.update({"n": 1})
    assert cache.exists()
    assert cache.get() == {"n": 1}
    cache.clear()
    assert not cache.exists()
    assert cache.get() is None


@both
def test_reading_makes_nothing_dirty(room, make):
    room.fill(ann={"n": 1})
    cache = make(room)
    room.set_current_key("ann")
    cache.get()
    cache.exists()
    cache.update_all_states()
    assert room.counts() == (1, 0)


@both
def test_a_change_in_place_without_update_is_neither_written_nor_seen_in_the_next_version(room, make):
    room.fill(ann={"n": 1})
    cache = make(room)
    room.set_current_key("ann")
    cache.get()["n"] = 99
    snapshot = room.backend.commit()
    assert list(snapshot.changes()) == []
    room.set_current_key("ann")
    assert cache.get() == {"n": 1}


@both
def test_two_reads_of_one_version_give_the_same_object(room, make):
    room.fill(ann={"n": 1})
    cache = make(room)
    room.set_current_key("ann")
    assert cache.get() is cache.get()


@both
def test_update_makes_dirty_once_however_often_it_is_called(room, make):
    cache = make(room)
    room.set_current_key("ann")
    for n in range(5):
        cache.update({"n": n})
    assert room.counts() == (0, 0)
    cache.update_all_states()
    assert room.state.puts == [("ann", {"n": 4})]


@both
def test_update_all_states_writes_once_and_keeps_the_entries_clean(room, make):
    cache = make(room)
    room.set_current_key("ann")
    cache.update({"n": 1})
    cache.update_all_states()
    cache.update_all_states()
    assert cache.get() == {"n": 1}
    assert room.counts() == (0, 1)


@both
def test_clear_is_written_like_an_update(room, make):
    room.fill(ann={"n": 1})
    cache = make(room)
    room.set_current_key("ann")
    cache.clear()
    assert room.state.clears == []
    cache.update_all_states()
    assert room.state.clears == ["ann"]
    assert room.stored("ann") is None


@both
def test_a_missing_value_is_cached_and_is_no_miss(room, make):
    heard = []
    cache = make(room, hit_tracker=heard.append)
    room.set_current_key("ann")
    assert [cache.get(), cache.get(), cache.exists()] == [None, None, False]
    assert room.counts() == (1, 0)
    assert heard == [False, True, True]


@both
def test_a_commit_flushes_so_that_nobody_has_to_remember(room, make):
    cache = make(room)
    room.set_current_key("ann")
    cache.update({"n": 1})
    [(name, cells)] = room.backend.commit().changes()
    assert (name, cells.keys, cells.values) == ("profile", [("ann",)], [{"n": 1}])


@both
def test_an_entry_that_was_flushed_is_a_hit_in_the_next_version(room, make):
    cache = make(room)
    room.set_current_key("ann")
    cache.update({"n": 1})
    room.backend.commit()
    room.set_current_key("ann")
    assert cache.get() == {"n": 1}
    assert room.counts() == (0, 1)


@both
def test_what_is_changed_after_a_commit_does_not_reach_its_snapshot(room, make):
    cache = make(room)
    room.set_current_key("ann")
    cache.update({"n": 1})
    snapshot = room.backend.commit()
    room.set_current_key("ann")
    value = cache.get()
    value["n"] = 2
    cache.update(value)
    room.backend.commit()
    [(_, cells)] = snapshot.changes()
    assert cells.values == [{"n": 1}]


@both
def test_a_rollback_empties_it(room, make):
    room.fill(ann={"n": 1})
    cache = make(room)
    room.set_current_key("ann")
    cache.update({"n": 2})
    room.backend.rollback()
    assert cache.size() == 0
    room.set_current_key("ann")
    assert cache.get() == {"n": 1}


@both
def test_taking_a_commit_back_empties_it(room, make):
    room.fill(ann={"n": 1})
    cache = make(room)
    room.set_current_key("ann")
    cache.update({"n": 2})
    room.backend.commit().release()
    room.backend.undo_commit()
    room.set_current_key("ann")
    assert cache.get() == {"n": 1}


@both
def test_a_failed_flush_fails_the_commit_and_what_was_not_written_stays_dirty(room, make):
    cache = make(room)
    room.set_current_key("ann")
    cache.update({"n": 1})
    room.state.refused = {"ann"}
    with pytest.raises(OSError, match="no space for ann"):
        room.backend.commit()
    room.state.refused = set()
    [(_, cells)] = room.backend.commit().changes()
    assert cells.values == [{"n": 1}]


@both
def test_writing_other_keys_preserves_the_current_one(room, make):
    cache = make(room)
    for user in ("ann", "beth", "carol"):
        room.set_current_key(user)
        cache.update({"n": len(user)})
        assert room.state.user == user
    cache.update_all_states()
    context = room.backend.context
    assert (context.key_group, context.key) == (len("carol") % 2, ("carol",))
    assert [room.stored(user) for user in ("ann", "beth", "carol")] == [{"n": 3}, {"n": 4}, {"n": 5}]


@both
def test_a_write_that_raises_preserves_the_current_key(room, make):
    cache = make(room)
    room.set_current_key("ann")
    cache.update({"n": 1})
    room.set_current_key("beth")
    room.state.refused = {"ann"}
    with pytest.raises(OSError, match="no space for ann"):
        cache.update_all_states()
    context = room.backend.context
    assert (context.key_group, context.key) == (0, ("beth",))


def test_an_entry_whose_eviction_fails_stays_and_is_written_later(room):
    cache = one_layer(room)
    for user in ("ann", "bob"):
        room.set_current_key(user)
        cache.update({"of": len(user)})
    room.state.refused = {"ann"}
    room.set_current_key("carol")
    with pytest.raises(OSError, match="no space for ann"):
        cache.update({"of": 5})
    room.state.refused = set()
    cache.update_all_states()
    assert sorted(user for user, _ in room.state.puts) == ["ann", "bob", "carol"]


def test_the_key_used_longest_ago_leaves_and_only_if_dirty_it_is_written(room):
    room.fill(ann={"n": 1}, bob={"n": 2}, carol={"n": 3})
    cache = one_layer(room)
    for user in ("ann", "bob"):
        room.set_current_key(user)
        cache.get()
    cache.update({"n": 20})
    for user in ("ann", "carol"):  # ann is used again, so bob leaves
        room.set_current_key(user)
        cache.get()
    assert room.state.puts == [("bob", {"n": 20})]
    room.set_current_key("bob")  # ann leaves clean
    assert cache.get() == {"n": 20}
    assert room.counts() == (4, 1)
    assert cache.size() == cache.max_size == 2


@both
def test_the_get_hook_may_replace_what_was_read_and_is_not_asked_again_while_it_is_cached(room, make):
    room.fill(ann={"n": 1})
    asked = []

    def doubled(key, value):
        asked.append((key, dict(value)))
        return {"n": 2 * value["n"]}

    cache = make(room, on_get=doubled)
    room.set_current_key("ann")
    assert [cache.get(), cache.get()] == [{"n": 2}, {"n": 2}]
    assert asked == [(("ann",), {"n": 1})]


@both
def test_what_the_get_hook_replaced_is_state_only_after_an_update(room, make):
    room.fill(ann={"n": 1})
    cache = make(room, on_get=lambda _, value: {"n": 2 * value["n"]})
    room.set_current_key("ann")
    assert cache.get() == {"n": 2}
    cache.update_all_states()
    assert room.state.puts == []
    cache.update(cache.get())
    cache.update_all_states()
    assert room.state.puts == [("ann", {"n": 2})]


@both
def test_the_get_hook_hears_none_of_a_key_without_value_and_may_give_it_one(room, make):
    cache = make(room, on_get=lambda _, value: {"n": 0} if value is None else value)
    room.set_current_key("ann")
    assert cache.get() == {"n": 0}


@both
def test_the_update_hook_may_replace_what_is_written_and_cached(room, make):
    heard = []

    def capped(key, value):
        heard.append((key, value))
        return {"n": min(value["n"], 10)}

    cache = make(room, on_update=capped)
    room.set_current_key("ann")
    cache.update({"n": 99})
    assert heard == []
    cache.update_all_states()
    assert heard == [(("ann",), {"n": 99})]
    assert cache.get() == {"n": 10}
    assert room.stored("ann") == {"n": 10}


@both
def test_the_update_hook_may_clear(room, make):
    room.fill(ann={"n": 1})
    cache = make(room, on_update=lambda _key, _value: None)
    room.set_current_key("ann")
    cache.update({"n": 2})
    cache.update_all_states()
    assert room.stored("ann") is None
    assert not cache.exists()


class Stopwatch:
    """Notes what it is told, and which reads and writes there had been by then."""

    def __init__(self, room):
        self._room = room
        self.told = []

    def restart(self):
        self.told.append(("restart", *self._room.counts()))

    def stop_and_record(self):
        self.told.append(("stop", *self._room.counts()))


@both
def test_watches_run_while_the_state_is_read_and_written_and_at_no_other_time(room, make):
    read, write = Stopwatch(room), Stopwatch(room)
    cache = make(room, read_watch=read, write_watch=write)
    room.set_current_key("ann")
    cache.get()
    cache.get()
    cache.update({"n": 1})
    cache.update_all_states()
    cache.update_all_states()
    assert read.told == [("restart", 0, 0), ("stop", 1, 0)]
    assert write.told == [("restart", 1, 0), ("stop", 1, 1)]


@both
@pytest.mark.parametrize("size", [0, -1, None, True, 1.5])
def test_a_size_below_one_is_refused(room, make, size):
    with pytest.raises(OptionError, match=r"max_size: expected a whole number of at least 1, got"):
        WriteBackCache(room.backend, room.state, max_size=size)
    with pytest.raises(OptionError, match=r"max_size_l2: expected"):
        TwoLayerCache(room.backend, room.state, max_size=1, max_size_l2=size)


@both
def test_a_missing_state_or_backend_is_refused(room, make):
    backend, room.backend = room.backend, None
    with pytest.raises(OptionError, match=r"a backend that carries it, got NoneType: wrap .* CachedValues"):
        make(room)
    room.backend = HeapBackend(range(2))
    with pytest.raises(OptionError, match=r"a backend that carries it, got HeapBackend: wrap .* CachedValues"):
        make(room)
    room.backend, room.state = backend, None
    with pytest.raises(OptionError, match="needs a state"):
        make(room)


@both
@pytest.mark.parametrize(
    ("adds", "declared"),
    [("a ttl", {"ttl": 60_000}), ("a default", {"default": dict}), ("a default", {"default": dict, "ttl": 1})],
)
def test_a_handle_that_has_a_ttl_or_a_default_is_refused_by_name(room, make, adds, declared):
    room.state = States(room.backend).value("visits", dict[str, int], **declared)
    with pytest.raises(OptionError, match=rf"state 'visits' has {adds}, .*cache=WriteBack\(max_size="):
        make(room)


@both
@pytest.mark.parametrize("use", ["get", "exists", "clear", "update"])
def test_a_use_without_a_current_key_names_the_state(room, make, use):
    cache = make(room)
    call = {"update": lambda: cache.update({"n": 1})}.get(use, getattr(cache, use))
    with pytest.raises(OptionError, match="state 'profile' was used without a current key"):
        call()
    room.set_current_key("ann")
    cache.update({"n": 1})
    room.backend.commit()
    with pytest.raises(OptionError, match="state 'profile' was used without a current key"):
        call()
    room.set_current_key("ann")
    cache.update({"n": 1})
    room.backend.rollback()
    with pytest.raises(OptionError, match="state 'profile' was used without a current key"):
        call()


@both
def test_a_value_that_cannot_be_kept_is_refused_at_the_update_with_state_and_key(room, make):
    cache = make(room)
    room.set_current_key("ann")
    with pytest.raises(DataError, match=r"state 'profile' of key \('ann',\)"):
        cache.update({"n": object()})
    with pytest.raises(DataError, match=r"state 'profile' of key \('ann',\).*Use clear\(\)"):
        cache.update(None)
    assert cache.get() is None


@both
def test_what_a_backend_of_objects_keeps_is_a_copy_that_the_user_does_not_hold(room, make):
    copied = []

    def copy(value):
        copied.append(value)
        return dict(value)

    cache = make(room, copy=copy)
    room.set_current_key("ann")
    mine = {"n": 1}
    cache.update(mine)
    cache.update_all_states()
    mine["n"] = 2
    assert len(copied) == room.backend.shares_objects
    if room.backend.shares_objects:
        assert room.stored("ann") == {"n": 1}


@both
def test_keys_of_two_key_groups_are_two(room, make):
    cache = make(room)
    room.backend.enter(0)
    room.backend.context.key = ("ann",)
    cache.update({"n": 0})
    room.backend.enter(1)
    room.backend.context.key = ("ann",)
    assert cache.get() is None


def test_the_state_shows_dirty_entries_and_keeps_them_cached(room):
    cache = one_layer(room)
    room.set_current_key("ann")
    cache.update({"n": 1})
    assert list(room.backend.keys("profile")) == [(1, ("ann",))]
    assert room.backend.cells("profile", 1).values == [{"n": 1}]
    assert (cache.size(), cache.dirty_size()) == (1, 0)
    assert room.counts() == (0, 1)


@both
def test_what_is_changed_in_place_after_an_update_is_not_state(room, make):
    cache = make(room)
    room.set_current_key("ann")
    mine = {"n": 1}
    cache.update(mine)
    mine["n"] = 2
    cache.get()["n"] = 3
    assert cache.get() is mine
    [(_, cells)] = room.backend.commit().changes()
    assert cells.values == [{"n": 1}]
    room.set_current_key("ann")
    assert cache.get() == {"n": 1}
