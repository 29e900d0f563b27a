"""Typed handles: state declared as Python types, used as plain objects, refused by name when it does not fit."""

import dataclasses
import datetime as dt
import statistics

import pytest

from millpond.errors import DataError, OptionError
from millpond.state.operator.states import States
from millpond.state.spi import HeapBackend, StateKind
from millpond.state.types.serializer import user_serializer


@dataclasses.dataclass
class Visit:
    page: str
    seconds: float = 0.0


class Mean:
    """The accumulator is changed in place, as users do."""

    def create(self):
        return [0.0, 0]

    def add(self, accumulator, value):
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def result(self, accumulator):
        return accumulator[0] / accumulator[1]


@pytest.fixture
def backend():
    return HeapBackend(range(8))


@pytest.fixture
def states(backend):
    return States(backend)


def at(backend, key, key_group=0):
    backend.enter(key_group)
    backend.context.key = (key,)


def test_a_state_without_default_and_ttl_is_the_backends_own_handle(backend):
    heard = []
    states = States(backend, heard.append)
    handles = [states.value("v", int), states.list("l", int), states.map("m", tuple[str, int], int)]
    assert [found.kind for found in heard] == [StateKind.VALUE, StateKind.LIST, StateKind.MAP]
    assert handles[0] is backend.value_state(heard[0])
    assert handles[1] is backend.list_state(heard[1])
    assert handles[2] is backend.map_state(heard[2])


def test_a_value_of_a_users_class_is_kept_and_absent_is_none(backend, states):
    last = states.value("last", Visit)
    at(backend, "ann")
    assert last.get() is None
    assert not last.exists()
    last.update(Visit("/home", 1.5))
    assert last.get() == Visit("/home", 1.5)
    at(backend, "bob")
    assert last.get() is None
    at(backend, "ann")
    last.clear()
    assert last.get() is None


def test_a_default_is_returned_where_there_is_no_value_and_is_no_state(backend, states):
    count = states.value("count", int, default=0)
    at(backend, "ann")
    assert count.get() == 0
    assert not count.exists()
    count.update(count.get() + 1)
    assert count.get() == 1
    count.clear()
    assert count.get() == 0


@pytest.mark.parametrize("default", [str, list, lambda: "0", lambda: None], ids=["str", "list", "text", "none"])
def test_what_a_default_function_gives_is_checked(backend, states, default):
    at(backend, "ann")
    with pytest.raises(OptionError, match=r"default of state 'count' is not of its type: expected int, got"):
        states.value("count", int, default=default).get()


def test_a_class_that_gives_no_default_of_the_type_is_refused_at_the_declaration(states):
    with pytest.raises(OptionError, match=r"default of state 'count' is not of its type: expected int, got str ''"):
        states.value("count", int, default=str)
    with pytest.raises(OptionError, match=r"default of state 'range' is the class range, which cannot be called"):
        states.value("range", int, default=range)


def test_a_default_function_is_not_called_before_it_is_needed(backend, states):
    at(backend, "ann")
    numbers = iter([7])
    count = states.value("count", int, default=lambda: next(numbers))
    assert count.get() == 7


@pytest.mark.parametrize("name", [5, None, b"count", "", "\ud800"])
def test_a_name_that_no_checkpoint_could_hold_is_refused(states, name):
    declarations = (states.value, states.list, lambda name, kind: states.map(name, str, kind))
    for declare in declarations:
        with pytest.raises(OptionError, match=r"a state is named .*; expected a text that is not empty"):
            declare(name, int)


def test_names_that_are_millponds_own_are_refused(states):
    with pytest.raises(OptionError, match=r"state '\$timers': names that begin with \$ are Millpond's own"):
        states.value("$timers", int)


@pytest.mark.parametrize("default", [[1], lambda: [1]], ids=["value", "callable"])
def test_a_mutable_default_is_another_object_every_time(backend, states, default):
    numbers = states.value("numbers", list[int], default=default)
    at(backend, "ann")
    numbers.get().append(2)
    assert numbers.get() == [1]


def test_a_default_that_is_not_of_the_type_is_refused_at_the_declaration(states):
    with pytest.raises(OptionError, match=r"default of state 'count' is not of its type: expected int, got str '0'"):
        states.value("count", int, default="0")


def test_a_list_keeps_objects_in_order(backend, states):
    visits = states.list("visits", Visit)
    at(backend, "ann")
    visits.append(Visit("/a"))
    visits.extend([Visit("/b"), Visit("/c")])
    assert [visit.page for visit in visits.get()] == ["/a", "/b", "/c"]
    visits.put([Visit("/d")])
    assert list(visits.get()) == [Visit("/d")]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (str, "/a", "/b"),
        (int, 1, 2),
        (bytes, b"a", b"b"),
        (dt.date, dt.date(2024, 1, 1), dt.date(2024, 1, 2)),
        (dt.datetime, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)),
        (tuple[str, int], ("a", 1), ("a", 2)),
        (tuple[str], ("a",), ("b",)),
    ],
    ids=str,
)
def test_map_keys_are_given_and_returned_as_they_were_declared(backend, states, kind, first, second):
    counts = states.map("counts", kind, int)
    at(backend, "ann")
    counts.put(first, 1)
    counts.put(second, 2)
    assert counts.get(first) == 1
    assert counts.contains(second)
    assert sorted(counts.items()) == [(first, 1), (second, 2)]
    counts.remove(first)
    assert counts.get(first) is None
    counts.clear()
    assert not counts.exists()


@pytest.mark.parametrize("kind", [list[int], tuple[int, ...], tuple[()], Visit, int | str], ids=str)
def test_map_keys_that_are_not_atoms_or_tuples_of_them_are_refused(states, kind):
    with pytest.raises(
        OptionError, match=r"state 'counts': the type of map keys is .*expected one of .*int, float, str"
    ):
        states.map("counts", kind, int)


def test_reducing_state_reduces_every_added_value(backend, states):
    fastest = states.reducing("fastest", float, min)
    at(backend, "ann")
    assert fastest.get() is None
    for seconds in (0.7, 0.3, 0.9):
        fastest.add(seconds)
    assert fastest.get() == 0.3
    fastest.clear()
    assert not fastest.exists()
    fastest.add(0.8)
    assert fastest.get() == 0.8


def test_aggregating_state_gives_the_result_of_what_was_added_and_survives_a_rollback(backend, states):
    mean = states.aggregating("mean", Mean(), list[float])
    values = [1.0, 2.0, 6.0]
    at(backend, "ann")
    assert mean.get() is None
    for value in values:
        mean.add(value)
    assert mean.get() == statistics.fmean(values)
    backend.commit().release()
    at(backend, "ann")
    mean.add(100.0)
    backend.rollback()
    at(backend, "ann")
    assert mean.get() == statistics.fmean(values)


def test_a_change_without_update_does_not_outlive_the_version(backend, states):
    numbers = states.value("numbers", list[int])
    at(backend, "ann")
    numbers.update([1])
    snapshot = backend.commit()
    at(backend, "ann")
    numbers.get().append(2)
    backend.commit()
    at(backend, "ann")
    assert numbers.get() == [1]
    assert snapshot.cells("numbers", 0).values == [[1]]


def test_keys_are_given_each_once_unwrapped_and_leave_the_current_key_alone(backend, states):
    counts = states.map("counts", str, int)
    pair = states.value("pair", int)
    for key_group, key in [(0, ("ann",)), (0, ("bob",)), (5, ("cy",))]:
        backend.enter(key_group)
        backend.context.key = key
        counts.put("a", 1)
        counts.put("b", 1)
    backend.context.key = ("cy", 1)
    pair.update(1)
    seen = []
    for key in states.keys("counts"):
        seen.append(key)
        assert pair.get() == 1
    assert sorted(seen) == ["ann", "bob", "cy"]
    assert list(states.keys("pair")) == [("cy", 1)]
    with pytest.raises(OptionError, match=r"no state 'count' was declared here; there are \['counts', 'pair'\]"):
        states.keys("count")


def test_two_states_of_one_name_are_refused_with_both_declarations(states):
    states.value("count", int)
    with pytest.raises(
        OptionError, match=r"\[value count \(msgspec int\)\] and again as \[list count \(msgspec str\)\]"
    ):
        states.list("count", str)
    with pytest.raises(OptionError, match="Give each state of an operator its own name"):
        states.value("count", int)


def test_what_does_not_fit_is_refused_at_the_update_with_state_and_key(backend, states):
    count = states.value("count", int)
    pages = states.map("pages", str, Visit)
    at(backend, "ann")
    with pytest.raises(DataError, match=r"'count'.*'ann'.*expected int, got str 'x'"):
        count.update("x")
    with pytest.raises(DataError, match=r"'count'.*'ann'.*got None.*Use clear"):
        count.update(None)
    with pytest.raises(DataError, match=r"'pages'.*'ann'.*expected Visit\(page: str, seconds: float\), got Visit"):
        pages.put("/a", Visit(1))
    assert not count.exists()
    assert not pages.exists()


def test_a_serializer_is_chosen_by_name_or_brought_along(backend, states):
    anything = states.value("anything", object, serializer="pickle")
    latin = user_serializer("latin", lambda text: text.encode("latin"), lambda data: data.decode("latin"))
    own = states.value("own", str, serializer=latin)
    half = user_serializer("half", lambda text: text.encode("latin"), bytes.decode)
    utf_8 = states.value("utf_8", str, serializer=half)
    at(backend, "ann")
    anything.update({"c": 1j})
    assert anything.get() == {"c": 1j}
    own.update("é")
    with pytest.raises(DataError, match=r"'own'.*serializer 'latin' can write"):
        own.update("€")
    with pytest.raises(DataError, match=r"'utf_8'.*serializer 'half' can read again"):
        utf_8.update("é")
    with pytest.raises(OptionError, match=r"state 'x': serializer is 'json'; expected 'msgspec', 'pickle'"):
        states.value("x", int, serializer="json")
    with pytest.raises(OptionError, match=r"state 'y': .*complex.*serializer='pickle'"):
        states.value("y", complex)


def test_a_state_used_without_a_current_key_is_refused_by_name(backend, states):
    plain = states.value("plain", int, default=0)
    living = states.value("living", int, ttl=dt.timedelta(hours=1))
    for state, name in ((plain, "plain"), (living, "living")):
        with pytest.raises(OptionError, match=name):
            state.update(1)
