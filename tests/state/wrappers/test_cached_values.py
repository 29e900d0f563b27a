"""King's caches as an operator's author has them: below default and ttl, and never to be flushed by hand."""

from typing import ClassVar

import pytest

from millpond.errors import OptionError
from millpond.state import Harness, Lru, StateOptions, TwoLayer, WriteBack
from millpond.state.operator.states import States
from millpond.state.spi import ABSENT, CachedValues, CacheHooks, Cells, HeapBackend, Ttl, open_backend

CHOICES = [WriteBack(max_size=2), TwoLayer(max_size=1, max_size_l2=1)]


@pytest.fixture(params=CHOICES, ids=["one layer", "two layers"])
def choice(request):
    return request.param


@pytest.fixture
def backend():
    return CachedValues(HeapBackend(range(4)))


def set_current_key(backend, key="ann", now_ms=0):
    backend.enter(len(key) % 4)
    backend.context.key = (key,)
    backend.context.now_ms = now_ms


def hooked(choice, **hooks):
    sizes = {"max_size": choice.max_size}
    if isinstance(choice, TwoLayer):
        sizes["max_size_l2"] = choice.max_size_l2
    return type(choice)(**sizes, hooks=CacheHooks(**hooks))


def test_a_default_stays_no_state_behind_a_cache(backend, choice):
    visits = States(backend).value("visits", int, default=7, cache=choice)
    set_current_key(backend)
    assert (visits.get(), visits.exists()) == (7, False)
    visits.update(1)
    assert (visits.get(), visits.exists()) == (1, True)
    visits.clear()
    assert (visits.get(), visits.exists()) == (7, False)


def test_reducing_and_aggregating_state_are_cached_like_values(backend, choice):
    heard = []
    most = States(backend).reducing("most", int, max, cache=hooked(choice, hit_tracker=heard.append))
    set_current_key(backend)
    for number in (3, 5, 4):
        most.add(number)
    assert (most.get(), heard) == (5, [False, True, True, True])


def test_a_cached_value_expires_when_it_would_without_the_cache(backend, choice):
    seen = States(backend).value("seen", str, ttl=10, cache=choice)
    set_current_key(backend, now_ms=100)
    seen.update("a")
    set_current_key(backend, now_ms=109)
    assert (seen.get(), seen.exists()) == ("a", True)
    set_current_key(backend, now_ms=110)
    assert (seen.get(), seen.exists()) == (None, False)


def test_a_read_that_refreshes_makes_the_cached_value_live_on(backend, choice):
    seen = States(backend).value("seen", str, ttl=Ttl(10, refresh="read-and-write"), cache=choice)
    set_current_key(backend, now_ms=100)
    seen.update("a")
    for now_ms in (109, 118, 127):
        set_current_key(backend, now_ms=now_ms)
        assert seen.get() == "a"
    [(_, cells)] = backend.commit().changes()
    assert cells.values == [("a", 127)]


def test_hooks_of_a_state_with_a_ttl_see_values_and_no_expired_one(backend, choice):
    asked = []

    def on_get(key, value):
        asked.append((key, value))
        return value

    seen = States(backend).value(
        "seen", str, ttl=10, cache=hooked(choice, on_get=on_get, on_update=lambda _, v: v.upper())
    )
    set_current_key(backend, now_ms=100)
    assert seen.get() is None
    seen.update("a")
    backend.commit()
    backend.rollback()
    set_current_key(backend, now_ms=105)
    assert seen.get() == "A"
    backend.rollback()
    set_current_key(backend, now_ms=110)
    assert seen.get() is None
    assert asked == [(("ann",), None), (("ann",), "A"), (("ann",), None)]


def test_a_get_hook_may_give_an_expired_state_a_new_life(backend, choice):
    seen = States(backend).value("seen", str, ttl=10, cache=hooked(choice, on_get=lambda _, value: value or "new"))
    set_current_key(backend, now_ms=100)
    assert seen.get() == "new"
    set_current_key(backend, now_ms=109)
    assert seen.get() == "new"


def test_an_update_hook_hears_of_a_clear_and_may_give_a_value_instead(backend, choice):
    kept = States(backend).value("kept", str, ttl=10, cache=hooked(choice, on_update=lambda _, value: value or "tomb"))
    set_current_key(backend, now_ms=100)
    kept.clear()
    [(_, cells)] = backend.commit().changes()
    assert cells.values == [("tomb", 100)]


def test_an_update_hook_of_a_state_with_a_ttl_may_clear(backend, choice):
    kept = States(backend).value("kept", str, ttl=10, cache=hooked(choice, on_update=lambda _key, _value: None))
    set_current_key(backend)
    kept.update("a")
    assert everything(backend.commit(), "kept") == {}


def test_cells_that_the_backend_is_given_replace_what_is_cached_and_dirty(backend, choice):
    visits = States(backend).value("visits", int, cache=choice)
    set_current_key(backend)
    visits.update(1)
    backend.write("visits", Cells([3], [("ann",)], None, [ABSENT]))
    set_current_key(backend)
    assert visits.get() is None
    assert list(backend.keys("visits")) == []


def test_each_key_is_given_once_whether_it_is_cached_or_stored_or_both(backend, choice):
    states = States(backend)
    visits = states.value("visits", int, cache=choice)
    for key in ("ann", "bob", "carol", "dave", "ann"):
        set_current_key(backend, key)
        visits.update(len(key))
    set_current_key(backend, "bob")
    visits.clear()
    assert sorted(states.keys("visits")) == ["ann", "carol", "dave"]


def test_states_that_are_no_values_are_the_backends_own(choice):
    backend = CachedValues(HeapBackend(range(4)), choice)
    states = States(backend)
    events, pages = states.list("events", str), states.map("pages", str, int)
    set_current_key(backend)
    events.append("a")
    pages.put("/", 1)
    snapshot = backend.commit()
    assert {name for name, _ in snapshot.changes()} == {"events", "pages"}
    assert backend.rollback() is False


def test_a_cache_of_its_own_goes_before_the_one_chosen_for_all():
    backend = CachedValues(HeapBackend(range(4)), WriteBack(max_size=1))
    states = States(backend)
    small, large = states.value("small", int), states.value("large", int, cache=WriteBack(max_size=9))
    assert (small.max_size, large.max_size) == (1, 9)


def test_a_rollback_tells_of_what_only_the_cache_had(backend, choice):
    visits = States(backend).value("visits", int, cache=choice)
    set_current_key(backend)
    visits.update(1)
    assert backend.rollback()
    set_current_key(backend)
    assert visits.get() is None


@pytest.mark.parametrize("cache", [Lru(max_entries=1), "write-back", 5])
def test_what_is_no_cache_of_one_state_is_refused(backend, cache):
    with pytest.raises(OptionError, match=r"state 'visits': cache is .*; expected WriteBack"):
        States(backend).value("visits", int, cache=cache)


def test_a_backend_that_carries_no_caches_is_refused():
    with pytest.raises(OptionError, match=r"state 'visits' has a cache, and HeapBackend carries none.*CachedValues"):
        States(HeapBackend(range(4))).value("visits", int, cache=WriteBack(max_size=1))


def test_options_put_the_cache_in_front_of_every_value_state(choice, tmp_path):
    backend = open_backend(StateOptions(cache=choice), range(4), tmp_path)
    visits = States(backend).value("visits", int)
    set_current_key(backend)
    visits.update(1)
    assert (visits.size(), visits.dirty_size()) == (1, 1)


class Visits:
    """Counts by user, behind a cache that refuses to write while `refuses` has anything in it."""

    choice = WriteBack(max_size=100)
    refuses: ClassVar[set] = set()

    def open(self, states):
        self.count = states.value("count", int, default=0, cache=hooked(self.choice, on_update=self.refuse))

    def refuse(self, key, value):
        if key[0] in self.refuses:
            raise OSError(f"no room for {key[0]}")
        return value

    def process(self, user, _record, _context):
        self.count.update(self.count.get() + 1)


@pytest.fixture
def visits(choice):
    kind = type("Visits", (Visits,), {"choice": choice, "refuses": set()})
    with Harness(kind, key=lambda user: user, key_type=str, shards=2) as harness:
        harness.refuses = kind.refuses
        yield harness


USERS = ["ann", "bob", "carol", "dave", "erin", "ann"]
COUNTS = {"ann": 2, "bob": 1, "carol": 1, "dave": 1, "erin": 1}


def test_looking_at_state_sees_what_is_dirty(visits):
    visits.process_many(USERS)
    assert visits.state("count") == COUNTS


def test_a_savepoint_holds_what_is_dirty(visits, tmp_path):
    visits.process_many(USERS)
    visits.savepoint(str(tmp_path / "savepoint"))
    visits.process("ann")
    visits.restore_savepoint(str(tmp_path / "savepoint"), shards=3)
    assert visits.state("count") == COUNTS


def test_what_is_dirty_moves_when_the_number_of_shards_changes(visits):
    visits.process_many(USERS)
    visits.rescale(3)
    visits.process("ann")
    assert visits.state("count") == COUNTS | {"ann": 3}


def test_a_checkpoint_holds_what_is_dirty(visits):
    visits.process_many(USERS)
    visits.checkpoint()
    visits.process_many(USERS)
    visits.crash()
    visits.restore()
    assert visits.state("count") == COUNTS


def test_a_rollback_drops_what_is_dirty(visits):
    visits.process_many(USERS)
    visits.checkpoint()
    visits.process_many(USERS)
    visits.rollback()
    assert visits.state("count") == COUNTS


def test_closing_writes_nothing_and_so_cannot_fail(visits):
    visits.process_many(USERS)
    visits.refuses.update(USERS)
    visits.close()


def test_a_flush_that_fails_fails_the_checkpoint_which_can_be_tried_again(visits):
    visits.process_many(USERS)
    visits.checkpoint()
    visits.process("bob")
    visits.refuses.add("bob")
    with pytest.raises(OSError, match="no room for bob"):
        visits.checkpoint()
    visits.refuses.clear()
    visits.process("carol")
    visits.checkpoint()
    visits.crash()
    visits.restore()
    assert visits.state("count") == COUNTS | {"bob": 2, "carol": 2}


def test_after_a_flush_that_failed_the_last_checkpoint_can_be_gone_back_to(visits):
    visits.process_many(USERS)
    visits.checkpoint()
    visits.process_many(["ann", "bob"])
    visits.refuses.add("bob")
    with pytest.raises(OSError, match="no room for bob"):
        visits.checkpoint()
    visits.refuses.clear()
    visits.rollback()
    assert visits.state("count") == COUNTS


@pytest.mark.parametrize("act", ["savepoint", "rescale", "state"])
def test_a_flush_that_fails_fails_whoever_looks_and_loses_nothing(visits, act, tmp_path):
    visits.process_many(USERS)
    visits.refuses.add("ann")
    acts = {
        "savepoint": lambda: visits.savepoint(str(tmp_path / "savepoint")),
        "rescale": lambda: visits.rescale(3),
        "state": lambda: visits.state("count"),
    }
    with pytest.raises(OSError, match="no room for ann"):
        acts[act]()
    visits.refuses.clear()
    visits.process("ann")
    assert visits.state("count") == COUNTS | {"ann": 3}


def everything(snapshot, name):
    found = [snapshot.cells(name, key_group) for key_group in range(4)]
    return {key: value for cells in found for key, value in zip(cells.keys, cells.values, strict=True)}
