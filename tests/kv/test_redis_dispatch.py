"""What is sent where and again, played by hand: no server, no clock but the test's."""

import random

import hiredis
import pytest

from millpond.errors import CorruptionError, OptionError, UnavailableError
from millpond.kv.redis.dispatch import Pause, Send, dispatch
from millpond.kv.redis.operations import Command
from millpond.kv.redis.options import Address, redis_options
from millpond.kv.redis.routes import Routes

ONE, TWO = Address("one", 7000), Address("two", 7001)
ALL_TO_ONE = [[0, 16_383, [b"one", 7000, b"id"], [b"two", 7001, b"id"]]]
HALVES = [[0, 9_999, [b"one", 7000, b"id"]], [10_000, 16_383, [b"two", 7001, b"id"]]]
READ = Command((b"GET", b"k"), 5, is_read=True)
WRITE = Command((b"EVALSHA", b"sha", 1, b"k", 0), 5)
OTHER_READ, OTHER_WRITE = READ._replace(slot=12_000), WRITE._replace(slot=12_000)


class Play:
    """Runs `dispatch` against answers that are written down: an answer for each step that is not a pause."""

    def __init__(self, commands, url="redis://one:7000", routes=None, **options):
        self.options = redis_options(url, {"retry_ms": 1_000, **options})
        self.now_ms = 0
        self.sent = []
        self.paused_s = []
        self.routes = routes or Routes(self.options)
        self.steps = dispatch(
            commands,
            self.routes,
            self.options,
            pack=hiredis.pack_command,
            clock=lambda: self.now_ms,
            randomness=random.Random(1),
        )

    def run(self, answer):
        """Answer every step by `answer(address, data)`; the replies at the end."""
        outcome = None
        while True:
            try:
                step = self.steps.send(outcome)
            except StopIteration as stop:
                return stop.value
            if isinstance(step, Pause):
                self.paused_s.append(step.seconds)
                self.now_ms += 100
                outcome = None
            else:
                assert isinstance(step, Send)
                self.sent += [(address, pipeline.data) for address, pipeline in step.pipelines.items()]
                outcome = {address: answer(address, pipeline.data) for address, pipeline in step.pipelines.items()}


def one_after_another(*answers):
    rest = iter(answers)
    return lambda address, data: next(rest)


def packed(*commands):
    return b"".join(hiredis.pack_command(command) for command in commands)


def test_without_a_failure_there_is_one_pipeline():
    play = Play([READ, WRITE])
    assert play.run(one_after_another([b"v", 3])) == [b"v", 3]
    assert play.sent == [(ONE, packed(READ.args, WRITE.args))]


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionError("refused"),
        TimeoutError("slow"),
        [Exception("LOADING Redis is loading the dataset in memory")],
        [Exception("READONLY You can't write against a read only replica.")],
        [Exception("BUSY Redis is busy running a script.")],
        [Exception("MASTERDOWN Link with MASTER is down")],
        [Exception("Error running script (call to f_1): @user_script:7: -READONLY You can't write")],
    ],
)
def test_what_may_pass_is_tried_again_after_pauses_that_grow(failure):
    play = Play([WRITE])
    assert play.run(one_after_another(failure, failure, failure, failure, [b"v"])) == [b"v"]
    assert 1 <= len(play.paused_s) <= 4
    assert max(play.paused_s) <= 0.5


def test_when_the_time_for_retries_is_over_the_last_failure_is_named():
    play = Play([READ])
    with pytest.raises(
        UnavailableError, match=r"Redis at one:7000 failed for 1000 ms.*ConnectionError: refused"
    ) as told:
        play.run(lambda address, data: ConnectionError("refused"))
    assert isinstance(told.value.__cause__, ConnectionError)
    assert 1_000 <= play.now_ms <= 1_300


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", UnavailableError, "one:7000 is full"),
        ("NOPERM this user has no permissions", OptionError, "let this user not in"),
        ("NOAUTH Authentication required.", OptionError, "let this user not in"),
        ("WRONGTYPE Operation against a key", CorruptionError, "Give the store another prefix"),
        ("MISCONF Redis is configured to save RDB snapshots", UnavailableError, "refused a command: MISCONF"),
        ("ERR unknown command", UnavailableError, "refused a command: ERR unknown"),
    ],
)
def test_what_does_not_pass_is_told_at_once(reply, kind, message):
    play = Play([WRITE])
    with pytest.raises(kind, match=message):
        play.run(lambda address, data: [Exception(reply)])
    assert play.paused_s == []


def test_an_unknown_script_is_sent_whole():
    play = Play([WRITE])

    def answer(_address, data):
        return [b"ok"] if b"EVAL\r\n" in data else [Exception("NOSCRIPT No matching script.")]

    assert play.run(answer) == [b"ok"]
    assert play.paused_s == []


def test_a_cluster_is_asked_once_where_its_slots_are():
    play = Play([READ, READ], "redis+cluster://seed:1")
    assert play.run(one_after_another([ALL_TO_ONE], [b"v", b"w"])) == [b"v", b"w"]
    assert play.sent == [(Address("seed", 1), packed((b"CLUSTER", b"SLOTS"))), (ONE, packed(READ.args, READ.args))]


def test_a_node_without_a_name_is_the_one_that_was_asked():
    play = Play([READ], "redis+cluster://seed:1")
    play.run(one_after_another([[[0, 16_383, [b"", 7005]]]], [b"v"]))
    assert play.sent[-1][0] == Address("seed", 7005)


def test_only_the_commands_that_were_sent_elsewhere_are_sent_again():
    other = Command((b"GET", b"other"), 9, is_read=True)
    play = Play([READ, other], "redis+cluster://one:7000")
    replies = play.run(one_after_another([ALL_TO_ONE], [b"v", Exception("MOVED 9 two:7001")], [b"w"]))
    assert replies == [b"v", b"w"]
    assert play.sent[-1] == (TWO, packed(other.args))
    assert play.routes.of(other, primary=True) == TWO


def test_a_slot_that_is_moving_is_asked_for_once_and_not_remembered():
    play = Play([READ], "redis+cluster://one:7000")
    replies = play.run(one_after_another([ALL_TO_ONE], [Exception("ASK 5 two:7001")], [b"OK", b"v"]))
    assert replies == [b"v"]
    assert play.sent[-1] == (TWO, packed((b"ASKING",), READ.args))
    assert play.routes.of(READ, primary=True) == ONE


def test_nodes_that_point_at_each_other_are_given_up():
    play = Play([READ], "redis+cluster://one:7000")

    def answer(address, data):
        if b"SLOTS" in data:
            return [ALL_TO_ONE]
        return [Exception(f"MOVED 5 {TWO if address == ONE else ONE}")]

    with pytest.raises(UnavailableError, match=r"sent commands elsewhere for 1000 ms.*redis-cli --cluster check"):
        play.run(answer)
    assert play.paused_s


def test_a_failing_node_makes_the_others_be_asked_where_its_slots_are():
    play = Play([READ], "redis+cluster://one:7000,two:7001")

    def answer(address, data):
        if address == ONE and play.paused_s:
            return ConnectionError("refused")
        if b"SLOTS" in data:
            return [ALL_TO_ONE if address == ONE else [[0, 16_383, [b"two", 7001]]]]
        return ConnectionError("refused") if address == ONE else [b"v"]

    assert play.run(answer) == [b"v"]
    assert play.sent[-1][0] == TWO


def test_a_slot_that_nobody_has_is_waited_for():
    play = Play([READ], "redis+cluster://one:7000")
    nothing = [[0, 4, [b"one", 7000]]]
    assert play.run(one_after_another([nothing], [ALL_TO_ONE], [b"v"])) == [b"v"]
    again = Play([READ], "redis+cluster://one:7000")
    with pytest.raises(UnavailableError, match="no node of the cluster has the slot of a key"):
        again.run(lambda address, data: [nothing])


def fails_at(*down):
    """One node after another says where the slots are; nodes that are down refuse, the others answer."""

    def answer(address, data):
        if address.port in down:
            return ConnectionError("refused")
        return [HALVES] if b"SLOTS" in data else [b"v"] * data.count(b"GET")

    return answer


def test_reads_of_a_node_that_is_down_fail_and_those_of_the_others_are_answered():
    play = Play([READ, OTHER_READ], "redis+cluster://one:7000")
    found, failure = play.run(fails_at(7001))
    assert found == b"v"
    assert isinstance(failure, UnavailableError)
    assert "Redis at two:7001 failed for 1000 ms" in str(failure)
    assert [*play.routes.outages._down] == [TWO]


def test_a_node_that_is_down_is_asked_once_by_one_call_at_a_time_until_it_answers():
    first = Play([READ, OTHER_READ], "redis+cluster://one:7000")
    first.run(fails_at(7001))
    asking, other, later = (Play([READ, OTHER_READ], "redis+cluster://one:7000", first.routes) for _ in range(3))
    step = asking.steps.send(None)
    while b"GET" not in next(iter(step.pipelines.values())).data:
        step = asking.steps.send({address: [HALVES] for address in step.pipelines})
    assert set(step.pipelines) == {ONE, TWO}
    assert isinstance(other.run(fails_at(7001))[1], UnavailableError)
    assert TWO not in {address for address, _ in other.sent}
    asking.steps.close()
    assert later.run(fails_at()) == [b"v", b"v"]
    assert not later.routes.outages


def test_a_cluster_that_is_down_is_asked_once_by_one_call_at_a_time_until_a_node_answers():
    url = "redis+cluster://one:7000,two:7001"
    first = Play([READ], url)
    with pytest.raises(UnavailableError, match="failed for 1000 ms"):
        first.run(fails_at(7000, 7001))
    assert first.now_ms >= 1_000
    asking, other, next_one, later = (Play([READ], url, first.routes) for _ in range(4))
    assert [*asking.steps.send(None).pipelines] == [ONE]
    with pytest.raises(UnavailableError):
        other.run(fails_at(7000, 7001))
    assert other.sent == []
    asking.steps.close()
    with pytest.raises(UnavailableError):
        next_one.run(fails_at(7000, 7001))
    assert [address for address, _ in next_one.sent] == [ONE, TWO]
    assert next_one.paused_s == []
    assert later.run(fails_at()) == [b"v"]
    assert ONE not in later.routes.outages


def test_writes_are_tried_again_also_on_a_node_that_is_down():
    routes = Play([READ]).routes
    routes.outages.failed(ONE, UnavailableError("down"))
    play = Play([WRITE], routes=routes)
    assert play.run(one_after_another(ConnectionError("refused"), ConnectionError("refused"), [3])) == [3]


def test_a_write_that_fails_on_one_node_raises():
    play = Play([READ, OTHER_WRITE], "redis+cluster://one:7000")
    with pytest.raises(UnavailableError, match="Redis at two:7001 failed"):
        play.run(fails_at(7001))


def test_reads_go_to_replicas_and_after_a_failure_to_the_primary():
    play = Play([READ, WRITE], "redis+cluster://one:7000", read_from="replicas")

    def answer(address, data):
        if b"SLOTS" in data:
            return [ALL_TO_ONE]
        return ConnectionError("refused") if address == TWO else [b"v"]

    assert play.run(answer) == [b"v", b"v"]
    asked = [address for address, data in play.sent if b"GET" in data]
    assert asked == [TWO, ONE]


def test_a_replica_that_joined_later_is_heard_of():
    options = redis_options("redis+cluster://one:7000", {"read_from": "replicas"})
    routes = Routes(options)
    assert routes.is_due(0)
    routes.learn(ONE, [[0, 16_383, [b"one", 7000]]], now_ms=0)
    assert not routes.is_due(9_999)
    assert routes.is_due(10_000)
    assert routes.of(READ, primary=False) == ONE
    routes.learn(ONE, ALL_TO_ONE, now_ms=10_000)
    assert not routes.is_due(1_000_000)
    assert routes.of(READ, primary=False) == TWO
