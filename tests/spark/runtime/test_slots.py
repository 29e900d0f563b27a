"""A shard belongs to the latest attempt: the one before it stops, and one of lower order is refused."""

import threading

import pytest

from millpond.errors import UnavailableError
from millpond.spark.runtime import slots as slots_module
from millpond.spark.runtime.slots import Slot, Slots
from millpond.spark.spec.lease import Attempt


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def slot():
    return Slot(Clock())


def test_the_later_attempt_gets_the_shard_once_the_earlier_has_stopped(slot):
    holds, superseded, events = threading.Event(), threading.Event(), []

    def earlier():
        try:
            with slot.held(Attempt("app", 1)) as lease:
                events.append("earlier holds")
                holds.set()
                assert superseded.wait(20)
                while not lease.superseded_by:
                    pass  # the next keys
                lease.refuse()
        except UnavailableError as error:
            events.append(f"earlier stops: {error}")

    first = threading.Thread(target=earlier)
    first.start()
    assert holds.wait(20)
    superseded.set()
    with slot.held(Attempt("app", 2)) as lease:
        events.append("later holds")
        assert lease.superseded_by is None
    first.join(20)
    assert events[0] == "earlier holds"
    assert sorted(event[:13] for event in events[1:]) == ["earlier stops", "later holds"]
    (stopped,) = [event for event in events if event.startswith("earlier stops")]
    assert "order=1" in stopped
    assert "order=2" in stopped


def test_two_attempts_are_never_inside_together(slot):
    inside, most, lock, ready = 0, 0, threading.Lock(), threading.Barrier(8)

    def attempt(order):
        nonlocal inside, most
        ready.wait(20)
        try:
            with slot.held(Attempt("app", order)):
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1
        except UnavailableError:
            pass

    threads = [threading.Thread(target=attempt, args=(order,)) for order in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (most, inside) == (1, 0)
    with slot.held(Attempt("app", 8)) as lease:
        assert lease.superseded_by is None


def test_an_attempt_superseded_while_it_waits_never_holds_the_shard(slot):
    first_holds, let_go, results = threading.Event(), threading.Event(), {}

    def hold(order, inside=None):
        try:
            with slot.held(Attempt("app", order)):
                results[order] = "held"
                if inside:
                    inside()
        except UnavailableError:
            results[order] = "refused"

    def first():
        first_holds.set()
        assert let_go.wait(20)

    threads = [threading.Thread(target=hold, args=(1, first))]
    threads[0].start()
    assert first_holds.wait(20)
    for order in (2, 3):
        threads.append(threading.Thread(target=hold, args=(order,)))
        threads[-1].start()
        while slot._latest.attempt.order != order:
            pass
    let_go.set()
    for thread in threads:
        thread.join(20)
    assert results == {1: "held", 2: "refused", 3: "held"}


def test_an_attempt_of_lower_order_is_refused_and_disturbs_nobody(slot):
    with slot.held(Attempt("app", 5)) as lease:
        with pytest.raises(UnavailableError, match=r"order=4.*superseded by.*order=5"), slot.held(Attempt("app", 4)):
            raise AssertionError
        assert lease.superseded_by is None
    with pytest.raises(UnavailableError, match="order=4"), slot.held(Attempt("app", 4)):
        raise AssertionError


def test_orders_are_compared_within_one_application_only(slot):
    with slot.held(Attempt("app", 500)):
        pass
    with slot.held(Attempt("its restart", 1)) as lease:
        assert lease.superseded_by is None


def test_a_shard_held_too_long_is_unavailable(slot, monkeypatch):
    monkeypatch.setattr(slots_module, "LEASE_SECONDS", 0.01)
    with (
        slot.held(Attempt("app", 1)) as lease,
        pytest.raises(UnavailableError, match=r"still held by .*order=1"),
        slot.held(Attempt("app", 2)),
    ):
        raise AssertionError
    assert lease.superseded_by == Attempt("app", 2)


def test_a_failed_attempt_lets_go(slot):
    with pytest.raises(ZeroDivisionError), slot.held(Attempt("app", 1)):
        raise ZeroDivisionError
    with slot.held(Attempt("app", 2)):
        pass


def test_only_the_latest_attempt_may_use_the_idle_shard(slot):
    shard = slot.shard = object()
    with slot.held(Attempt("app", 1)), slot.idle(Attempt("app", 1)) as busy:
        assert busy is None
    with slot.idle(Attempt("app", 1)) as idle:
        assert idle is shard
    with slot.held(Attempt("app", 2)):
        pass
    with slot.idle(Attempt("app", 1)) as idle:
        assert idle is None
    with slot.idle(Attempt("app", 2)) as idle:
        assert idle is shard
        with slot.idle(Attempt("app", 2)) as second:
            assert second is None


def _found(slots, lineage):
    with slots.using(lineage) as slot:
        return slot


def test_slots_are_kept_by_lineage_and_dropped_when_idle():
    clock = Clock()
    slots = Slots(clock, idle_seconds=10)
    ann, bob = _found(slots, "ann"), _found(slots, "bob")
    assert ann is _found(slots, "ann")
    assert ann is not bob
    clock.seconds = 8
    with bob.held(Attempt("app", 1)):
        pass
    clock.seconds = 15
    assert slots.drop_idle() == 1
    assert _found(slots, "bob") is bob
    assert _found(slots, "ann") is not ann


def test_a_slot_in_use_is_not_dropped_however_long_its_batch_takes():
    clock = Clock()
    slots = Slots(clock, idle_seconds=10)
    with slots.using("ann") as slot, slot.held(Attempt("app", 1)):
        clock.seconds = 100
        assert slots.drop_idle() == 1
    assert _found(slots, "ann") is slot
    clock.seconds = 105
    assert slots.drop_idle() == 1, "its batch ended five seconds ago"


def test_a_slot_that_an_attempt_is_about_to_take_is_not_dropped_under_its_feet():
    """What is restored into a dropped slot would stay open: nobody would find it again."""
    clock = Clock()
    slots = Slots(clock, idle_seconds=10)
    with slots.using("ann") as slot:
        clock.seconds = 100
        assert slots.drop_idle() == 1
        assert slots.drop_unused() == 1
        with slot.held(Attempt("app", 1)):
            shard = slot.shard = Closable()
    assert _found(slots, "ann") is slot
    assert shard.closed == 0
    assert slots.drop_unused() == 0
    assert shard.closed == 1


def test_a_later_lease_interrupts_the_wait_of_the_one_before():
    slot, interrupted = Slot(lambda: 0.0), []
    with slot.held(Attempt("app", 1), lambda: interrupted.append(1)) as lease:
        assert interrupted == []
        with pytest.raises(UnavailableError, match="superseded"), slot.held(Attempt("app", 0)):
            pytest.fail("an earlier attempt must not get the slot")
        assert interrupted == []
        later = threading.Thread(target=lambda: slot.held(Attempt("app", 2)).__enter__())
        later.start()
        while lease.superseded_by is None:
            later.join(0.01)
        assert interrupted == [1]
    later.join()


class Closable:
    """Stands for a shard and for its backend: what a slot drops must be closed."""

    def __init__(self):
        self.backend = self
        self.closed = 0

    def close(self):
        self.closed += 1


def test_a_dropped_shard_is_closed_once(slot):
    shard = slot.shard = Closable()
    slot.drop()
    slot.drop()
    assert slot.shard is None
    assert shard.closed == 1


def test_an_idle_slot_closes_its_shard_when_it_is_dropped():
    clock = Clock()
    slots = Slots(clock, idle_seconds=10)
    shard = _found(slots, "ann").shard = Closable()
    clock.seconds = 15
    assert slots.drop_idle() == 0
    assert shard.closed == 1


def test_at_the_hosts_end_every_shard_that_nobody_holds_is_closed():
    slots = Slots(Clock(), idle_seconds=10)
    held, free = _found(slots, "ann"), _found(slots, "bob")
    held.shard, free.shard = Closable(), Closable()
    shards = held.shard, free.shard
    with held.held(Attempt("app", 1)):
        slots.close()
        assert [shard.closed for shard in shards] == [0, 1]


class Held:
    """A shard that says when it was closed."""

    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True


@pytest.mark.parametrize("fails", [False, True])
def test_a_shard_that_does_not_come_again_is_dropped_with_its_last_user(fails):
    slots, held = Slots(Clock(), 1800.0), Held()
    try:
        with slots.using("lineage", comes_again=False) as slot:
            slot.shard = held
            with slots.using("lineage", comes_again=False) as same:
                assert same is slot
            assert not held.closed
            assert not fails or 1 / 0
    except ZeroDivisionError:
        assert fails
    assert held.closed
    with slots.using("lineage") as slot:
        assert slot.shard is None


def test_a_shard_that_comes_again_stays():
    slots, held = Slots(Clock(), 1800.0), Held()
    with slots.using("lineage") as slot:
        slot.shard = held
    assert not held.closed
    with slots.using("lineage") as slot:
        assert slot.shard is held
