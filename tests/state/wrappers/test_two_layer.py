"""What two layers do that one does not."""

import pytest

from millpond.state.wrappers.king.two_layer import TwoLayerCache

USERS = {f"u{number}": {"n": number} for number in range(1, 8)}


def make(room, max_size, max_size_l2, **hooks):
    room.fill(**USERS)
    return TwoLayerCache(room.backend, room.state, max_size=max_size, max_size_l2=max_size_l2, **hooks)


def read(room, cache, *users):
    for user in users:
        room.set_current_key(user)
        assert cache.get() == USERS[user]


def test_a_user_evicted_from_l1_is_found_in_l2_and_promoted(room):
    cache = make(room, 3, 1)
    read(room, cache, "u1", "u2", "u3")
    assert (cache.size_l1(), cache.size_l2()) == (3, 0)
    read(room, cache, "u4")  # u1 goes down
    assert (cache.size_l1(), cache.size_l2()) == (3, 1)
    read(room, cache, "u2", "u3", "u4", "u1")  # u1 comes up, u2 goes down
    assert (cache.size_l1(), cache.size_l2(), cache.size()) == (3, 1, 4)
    read(room, cache, "u2")
    assert len(room.state.gets) == 4


def test_a_user_evicted_from_l2_is_gone(room):
    cache = make(room, 1, 1)
    read(room, cache, "u1", "u2", "u3", "u1")
    assert room.state.gets == ["u1", "u2", "u3", "u1"]
    assert room.state.puts == []


def test_a_dirty_user_who_goes_down_is_written_and_the_checkpoint_does_not_write_him_again(room):
    cache = make(room, 1, 2)
    room.set_current_key("u1")
    cache.update({"n": 100})
    read(room, cache, "u2")
    assert room.state.puts == [("u1", {"n": 100})]
    cache.update_all_states()
    assert len(room.state.puts) == 1
    room.set_current_key("u1")
    assert cache.get() == {"n": 100}
    assert room.state.gets == ["u2"]


def test_a_user_who_comes_up_clean_and_goes_down_again_is_not_written_again(room):
    cache = make(room, 1, 2)
    room.set_current_key("u1")
    cache.update({"n": 1})
    read(room, cache, "u2", "u1", "u2")
    assert len(room.state.puts) == 1


def test_an_update_of_a_user_in_l2_moves_him_up_without_a_read(room):
    cache = make(room, 1, 1)
    read(room, cache, "u1", "u2")
    room.set_current_key("u1")
    cache.update({"n": 50})
    assert (cache.size_l1(), cache.size_l2()) == (1, 1)
    assert cache.get() == {"n": 50}
    assert room.counts() == (2, 0)


def test_a_clear_of_a_user_in_l2_hides_what_was_there(room):
    cache = make(room, 1, 1)
    read(room, cache, "u1", "u2")
    room.set_current_key("u1")
    cache.clear()
    assert cache.get() is None
    read(room, cache, "u2")
    assert room.stored("u1") is None


def test_what_was_read_and_went_down_can_still_be_changed_in_place_and_is_not_kept_beyond_its_version(room):
    cache = make(room, 1, 2)
    room.set_current_key("u1")
    held = cache.get()
    read(room, cache, "u2")
    assert cache.size_l2() == 1
    held["n"] = 99
    room.backend.commit()
    read(room, cache, "u1")


def test_a_promotion_pushes_nobody_out_of_l2_who_has_room(room):
    cache = make(room, 1, 2)
    read(room, cache, "u1", "u2", "u3")
    assert cache.size_l2() == 2
    read(room, cache, "u2", "u1", "u3")
    assert len(room.state.gets) == 3


def test_the_l1_tracker_hears_of_every_read_and_the_l2_tracker_only_after_a_miss(room):
    l1, l2 = [], []
    cache = make(room, 1, 1, hit_tracker=l1.append, hit_tracker_l2=l2.append)
    read(room, cache, "u1")
    assert (l1, l2) == ([False], [False])
    read(room, cache, "u1")
    assert (l1, l2) == ([False, True], [False])
    read(room, cache, "u2")
    assert (l1, l2) == ([False, True, False], [False, False])
    read(room, cache, "u1")
    assert (l1, l2) == ([False, True, False, False], [False, False, True])
    cache.exists()
    assert (l1, l2) == ([False, True, False, False, True], [False, False, True])


def test_trackers_hear_nothing_of_writes(room):
    heard = []
    cache = make(room, 1, 1, hit_tracker=heard.append, hit_tracker_l2=heard.append)
    for user in ("u1", "u2", "u1"):
        room.set_current_key(user)
        cache.update({"n": 1})
        cache.clear()
    assert heard == []


def test_an_absence_moves_down_and_is_found_there(room):
    heard = []
    cache = make(room, 1, 1, hit_tracker_l2=heard.append)
    room.set_current_key("nobody")
    assert cache.get() is None
    read(room, cache, "u1")
    room.set_current_key("nobody")
    assert cache.get() is None
    assert room.state.gets == ["nobody", "u1"]
    assert heard == [False, False, True]


def test_a_user_whose_write_fails_stays_in_l1_dirty_and_the_error_reaches_the_caller(room):
    cache = make(room, 1, 1)
    room.set_current_key("u1")
    cache.update({"n": 100})
    room.state.refused = {"u1"}
    room.set_current_key("u2")
    with pytest.raises(OSError, match="no space for u1"):
        cache.get()
    assert room.backend.context.key == ("u2",)
    assert cache.size_l2() == 0
    room.state.refused = set()
    room.set_current_key("u1")
    assert cache.get() == {"n": 100}
    cache.update_all_states()
    assert room.state.puts == [("u1", {"n": 100})]


def test_the_update_hook_hears_of_evictions_and_what_it_gives_is_cached_below(room):
    cache = make(room, 1, 1, on_update=lambda key, value: {"n": value["n"] + len(key[0])})
    room.set_current_key("u1")
    cache.update({"n": 1})
    read(room, cache, "u2")
    assert room.stored("u1") == {"n": 3}
    assert cache.get() == {"n": 3}


def test_a_checkpoint_writes_no_more_than_l1_holds_however_large_l2_is(room):
    cache = make(room, 2, 100)
    for user in USERS:
        room.set_current_key(user)
        cache.update({"n": 0})
    before = len(room.state.puts)
    room.backend.commit().release()
    assert len(room.state.puts) - before == 2
    assert {user: room.stored(user) for user in USERS} == {user: {"n": 0} for user in USERS}
