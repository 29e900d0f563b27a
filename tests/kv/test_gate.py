"""The gate: many inside, or one alone, and nobody is forgotten outside."""

import threading

import pytest

from millpond.kv.gate import Gate


def test_any_number_are_inside_together():
    gate, both = Gate(), threading.Barrier(3)

    def enter():
        with gate.shared():
            both.wait(20)

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    both.wait(20)
    for thread in threads:
        thread.join(20)


def test_who_shuts_the_gate_waits_for_those_inside_and_those_outside_wait_for_him():
    gate, entered, leave, order = Gate(), threading.Event(), threading.Event(), []

    def first():
        with gate.shared():
            entered.set()
            assert leave.wait(20)
            order.append("first left")

    def alone():
        with gate.alone():
            order.append("alone")

    def later():
        while not gate.is_shut:
            pass
        leave.set()
        with gate.shared():
            order.append("later")

    threads = [threading.Thread(target=target) for target in (first, later)]
    threads[0].start()
    assert entered.wait(20)
    threads[1].start()
    alone()
    for thread in threads:
        thread.join(20)
    assert order == ["first left", "alone", "later"]


def test_nobody_is_inside_while_one_is_alone():
    gate, inside, worst, stop = Gate(), [], [], threading.Event()

    def come_and_go():
        while not stop.wait(0):
            with gate.shared():
                inside.append(1)
                inside.pop()

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with gate.alone():
            worst.append(len(inside))
    stop.set()
    for thread in threads:
        thread.join(20)
    assert worst == [0] * 50


def test_a_user_that_fails_leaves_the_gate_open_for_the_next():
    gate = Gate()
    with pytest.raises(ZeroDivisionError), gate.shared():
        1 / 0  # noqa: B018
    with gate.alone():
        assert gate.is_shut
