"""Reads that are written as bytes say what the commands say, and replies are parsed as they come in."""

import random
from itertools import pairwise

import hiredis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millpond.errors import DataError
from millpond.kv import Get
from millpond.kv.redis.connections import Replies
from millpond.kv.redis.operations import RedisOperations
from millpond.kv.store import MAX_TIME_MS

BOUNDS = st.none() | st.integers(-MAX_TIME_MS, MAX_TIME_MS) | st.integers(0, 2)
KEYS = st.binary(max_size=5) | st.sampled_from([b"", b"%", b"}", b"{", b"a}b%"])
GETS = st.lists(st.builds(Get, st.sampled_from(["batch", "tiles", "zähler"]), KEYS, BOUNDS, BOUNDS), max_size=8)


def operations():
    return RedisOperations("shop", clock=int, randomness=random.Random(1))


@given(GETS, GETS)
@example([Get("batch", b"EWR", 5, 6)], [Get("batch", b"EWR", 5, 6), Get("batch", b"}", 5, 6), Get("batch", b"EWR", 5)])
def test_packed_reads_are_the_commands_of_the_same_gets(first, second):
    made = operations()
    for gets in (first, second):
        guesses, commands = made.reads(gets)
        packed = [hiredis.pack_command(command.args) for command in commands]
        assert made.packed_reads.pack(gets) == (guesses, packed)


def test_a_dataset_that_is_of_another_kind_is_packed_as_what_it_is():
    made, get = operations(), Get("tiles", b"EWR", 5, 6)
    assert made.packed_reads.pack([get])[0] == ["one"]
    reading = made.get_many([get])
    next(reading)
    reading.send([hiredis.ReplyError("WRONGTYPE Operation against a key holding the wrong kind of value")])
    assert made.packed_reads.pack([get])[0] == ["many"]


def test_ranges_without_end_do_not_pile_up():
    reads = operations().packed_reads
    for time_ms in range(3_000):
        reads.pack([Get("tiles", b"EWR", time_ms)])
    assert len(reads._ranges) <= 1_000


def test_a_bound_that_is_no_time_is_refused():
    with pytest.raises(DataError, match="does not fit 53 bits"):
        operations().packed_reads.pack([Get("tiles", b"EWR", 1 << 70)])


SENT = b"$3\r\nrow\r\n*2\r\n$1\r\na\r\n$0\r\n\r\n$-1\r\n-WRONGTYPE no\r\n"


@given(st.lists(st.integers(1, len(SENT) - 1), max_size=6))
def test_replies_are_the_same_however_they_are_cut(cuts):
    replies = Replies(hiredis, 4)
    edges = [0, *sorted(set(cuts)), len(SENT)]
    wants_more = [replies.take(SENT[first:last]) for first, last in pairwise(edges)]
    assert wants_more == [True] * (len(edges) - 2) + [False]
    *sound, error = replies.whole()
    assert sound == [b"row", [b"a", b""], None]
    assert str(error) == "WRONGTYPE no"


@pytest.mark.parametrize(
    "parts", [[b"$3\r\nrow\r\n", b""], [SENT + b"$1\r\nx\r\n"], [SENT + b"$1"], [b"no protocol\r\n"], [b""]]
)
def test_what_is_not_as_many_replies_as_asked_for_is_none(parts):
    replies = Replies(hiredis, 4)
    assert [replies.take(part) for part in parts][-1] is False
    assert replies.whole() is None
