"""The readers-writer lock: shared by many, or held by one, and nobody waits for ever."""

import threading

import pytest

from millpond.kv.readers_writer_lock import ReadersWriterLock


def test_any_number_share_it_together():
    lock, both = ReadersWriterLock(), threading.Barrier(3)

    def enter():
        with lock.shared():
            both.wait(20)

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    both.wait(20)
    for thread in threads:
        thread.join(20)


def test_a_writer_waits_for_those_who_share_it_and_later_ones_wait_for_the_writer():
    lock, entered, leave, order = ReadersWriterLock(), threading.Event(), threading.Event(), []

    def first():
        with lock.shared():
            entered.set()
            assert leave.wait(20)
            order.append("first left")

    def alone():
        with lock.exclusive():
            order.append("alone")

    def later():
        while not lock.is_exclusive:
            pass
        leave.set()
        with lock.shared():
            order.append("later")

    threads = [threading.Thread(target=target) for target in (first, later)]
    threads[0].start()
    assert entered.wait(20)
    threads[1].start()
    alone()
    for thread in threads:
        thread.join(20)
    assert order == ["first left", "alone", "later"]


def test_nobody_shares_it_while_one_has_it_alone():
    lock, inside, worst, stop = ReadersWriterLock(), [], [], threading.Event()

    def come_and_go():
        while not stop.wait(0):
            with lock.shared():
                inside.append(1)
                inside.pop()

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with lock.exclusive():
            worst.append(len(inside))
    stop.set()
    for thread in threads:
        thread.join(20)
    assert worst == [0] * 50


def test_a_failure_while_sharing_releases_it_for_the_next():
    lock = ReadersWriterLock()
    with pytest.raises(ZeroDivisionError), lock.shared():
        1 / 0  # noqa: B018
    with lock.exclusive():
        assert lock.is_exclusive
