"""The stream of the seed's picture, event by event: U1 twice, U2 twice, checkpoint, both again twice, ..."""

import pytest

from millpond.state.wrappers.king.two_layer import TwoLayerCache
from millpond.state.wrappers.king.write_back import WriteBackCache

CHECKPOINT = "checkpoint"


@pytest.fixture
def users(room):
    """The picture's users are in the state already."""
    room.fill(U1={"n": 0}, U2={"n": 0}, U3={"n": 0})
    return room


def play(room, cache, steps):
    """Run each step; the new gets and puts it caused, as users."""
    caused = []
    for step in steps:
        gets, puts = room.counts()
        if step == CHECKPOINT:
            room.backend.commit().release()
            room.backend.acknowledge()
        else:
            room.set_current_key(step)
            value = cache.get()
            value["n"] += 1
            cache.update(value)
        caused.append((step, room.state.gets[gets:], [user for user, _ in room.state.puts[puts:]]))
    return caused


def test_one_layer_of_two_reads_each_user_once_and_writes_each_dirty_one_at_a_checkpoint(users):
    cache = WriteBackCache(users.backend, users.state, max_size=2)
    stream = ["U1", "U1", "U2", "U2", CHECKPOINT, "U1", "U1", "U2", "U2", CHECKPOINT, "U2", "U3", CHECKPOINT]
    assert play(users, cache, stream) == [
        ("U1", ["U1"], []),
        ("U1", [], []),
        ("U2", ["U2"], []),
        ("U2", [], []),
        (CHECKPOINT, [], ["U1", "U2"]),
        ("U1", [], []),
        ("U1", [], []),
        ("U2", [], []),
        ("U2", [], []),
        (CHECKPOINT, [], ["U1", "U2"]),
        ("U2", [], []),
        ("U3", ["U3"], []),  # U1 leaves, but the checkpoint made it clean
        (CHECKPOINT, [], ["U2", "U3"]),
    ]
    assert [users.stored(user)["n"] for user in ("U1", "U2", "U3")] == [4, 5, 1]


def test_one_layer_of_two_writes_a_dirty_user_who_has_to_leave(users):
    cache = WriteBackCache(users.backend, users.state, max_size=2)
    stream = ["U1", "U1", "U2", "U2", CHECKPOINT, "U1", "U1", "U2", "U2", "U3", CHECKPOINT]
    assert play(users, cache, stream)[-2:] == [
        ("U3", ["U3"], ["U1"]),
        (CHECKPOINT, [], ["U2", "U3"]),
    ]
    assert users.counts() == (3, 5)
    assert [users.stored(user)["n"] for user in ("U1", "U2", "U3")] == [4, 4, 1]


def test_two_layers_of_one_write_a_user_who_goes_down_and_one_user_at_a_checkpoint(users):
    cache = TwoLayerCache(users.backend, users.state, max_size=1, max_size_l2=1)
    stream = ["U1", "U1", "U2", "U2", CHECKPOINT, "U1", "U1", "U2", "U2", CHECKPOINT, "U3", CHECKPOINT]
    assert play(users, cache, stream) == [
        ("U1", ["U1"], []),
        ("U1", [], []),
        ("U2", ["U2"], ["U1"]),  # U1 is written and moves down
        ("U2", [], []),
        (CHECKPOINT, [], ["U2"]),
        ("U1", [], []),  # found in L2; U2 moves down, which the checkpoint made clean
        ("U1", [], []),
        ("U2", [], ["U1"]),
        ("U2", [], []),
        (CHECKPOINT, [], ["U2"]),
        ("U3", ["U3"], []),  # U2 moves down clean, U1 is dropped
        (CHECKPOINT, [], ["U3"]),
    ]
    assert users.counts() == (3, 5)
    assert [users.stored(user)["n"] for user in ("U1", "U2", "U3")] == [4, 4, 1]
