"""How the executors that share a cache find each other."""

import socket
import threading
from contextlib import closing
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from millpond.errors import CorruptionError
from millpond.lookup.column_cache.key_hash import hashes
from millpond.spark.lookup.shared import owner as owner_module
from millpond.spark.lookup.shared.directory import MEMBER_MS, Directory, Member, decoded_members, encoded_member
from millpond.spark.lookup.shared.members import Members
from millpond.spark.lookup.shared.owner import Owner, Peer, encoded_ask
from millpond.spark.lookup.shared.ownership import owners, seed


@pytest.fixture
def members(directory, clock):
    made = []

    def make(name, address=directory.address):
        made.append(Members(address, name, lambda body: body[::-1], clock))
        made[-1].attend()
        return made[-1]

    yield make
    for each in made:
        each.close()


def number_of(members):
    return len(members.known().peers)


def test_an_executor_knows_those_that_came_before_and_at_its_next_beat_those_after(members):
    one = members("one")
    two = members("two")
    assert (number_of(one), number_of(two)) == (1, 2)
    one.beat()
    assert one.known().seeds == two.known().seeds
    assert [peer is None for peer in one.known().peers] == [True, False]
    assert [peer is None for peer in two.known().peers] == [False, True]


def test_an_executor_without_beats_is_forgotten(members, clock):
    one, two = members("one"), members("two")
    clock.ms += MEMBER_MS - 1
    one.beat()
    assert number_of(one) == 2
    clock.ms += 1
    one.beat()
    assert number_of(one) == 1
    two.beat()
    one.beat()
    assert number_of(one) == 2


def test_members_stay_while_the_directory_does_not_answer(members, directory, capfd):
    one, _ = members("one"), members("two")
    one.beat()
    directory.close()
    for _ in range(2):
        one.beat()
    assert number_of(one) == 2
    assert capfd.readouterr().err.count("does not answer") == 1


def test_an_executor_that_finds_no_directory_is_alone(members, directory):
    directory.close()
    assert number_of(members("one")) == 1


def test_who_does_not_know_the_token_learns_of_nobody_and_gets_no_answer(members, directory, clock, capfd):
    members("one")
    stranger = members("stranger", replace(directory.address, token="guessed"))  # noqa: S106 - it is wrong
    assert number_of(stranger) == 1
    assert "403" in capfd.readouterr().err
    asked = []
    owner = Owner("127.0.0.1", "the token", lambda body: asked.append(body) or b"")
    try:
        peer = Peer(owner.member("one"), "guessed", clock)
        with closing(peer.ask(encoded_ask([pa.array([1])], b""))) as answer:
            assert answer.answer() is None
        assert asked == []
    finally:
        owner.close()


def test_a_request_that_is_too_long_for_the_directory_is_refused(directory):
    member = encoded_member(Member("one", "127.0.0.1", 1, ""))
    with closing(directory.address.connection(10)) as connection:
        headers = {**directory.address.authorization(), "Content-Length": str(1 << 17)}
        connection.request("POST", "/", member, headers)
        assert connection.getresponse().status == 400
    assert [each.name for each in directory.joined(Member("two", "127.0.0.1", 1, ""))] == ["two"]


def test_what_is_no_list_of_members_is_an_error():
    with pytest.raises(CorruptionError, match="did not answer with members"):
        decoded_members(b"<html>")


def test_a_partition_does_not_wait_for_a_directory_that_hangs(clock):
    answers = threading.Event()
    answers.set()

    def slow_clock():
        answers.wait(20)
        return clock()

    with closing(Directory("127.0.0.1", "127.0.0.1", slow_clock)) as directory:
        one = Members(directory.address, "one", lambda body: body, clock)
        one.attend()
        answers.clear()
        beat = threading.Thread(target=one.beat)
        beat.start()
        one.attend()
        assert beat.is_alive()
        answers.set()
        beat.join(20)
        one.close()


def test_an_owner_that_makes_no_handshake_keeps_nobody_long(clock, monkeypatch):
    monkeypatch.setattr(owner_module, "CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = Owner("127.0.0.1", "the token", lambda body: body)
        peer = Peer(msgspec.structs.replace(there.member("one"), port=silent.getsockname()[1]), "the token", clock)
        there.close()
        assert peer.ask(b"abc").answer() is None
        assert not peer.is_there()


def test_a_connection_to_an_owner_is_used_again(clock):
    owner = Owner("127.0.0.1", "the token", lambda body: body[::-1])
    try:
        peer = Peer(owner.member("one"), "the token", clock)
        assert [peer.ask(text).answer() for text in (b"abc", b"de")] == [b"cba", b"ed"]
        assert len(peer._idle) == 1
        peer.close()
    finally:
        owner.close()


def test_a_member_more_moves_only_the_keys_that_it_gets():
    keys = hashes([pa.array(range(10_000))])
    seeds = [seed(f"executor {number}") for number in range(8)]
    before, after = owners(keys, seeds[:7]), owners(keys, seeds)
    assert set(after[after != before].tolist()) == {7}
    assert np.bincount(after).min() > 0.8 * 10_000 / 8


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_key_belongs_to_the_member_that_gives_it_the_greatest_weight(number):
    keys = hashes([pa.array(range(1_000))])
    seeds = [seed(f"executor {position}") for position in range(number)]
    weights = [hashes([pa.array(keys.view(np.int64))], each) for each in seeds]
    assert owners(keys, seeds).tolist() == np.argmax(weights, axis=0).tolist()
