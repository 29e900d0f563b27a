"""Handles with a time to live, against an oracle: a dictionary of values and the time their lives began."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.state.backend.expiry import CELLS_PER_ACCESS, alive
from millpond.state.operator.states import States
from millpond.state.spi import HeapBackend
from millpond.state.types.ttl import Ttl

TTL_MS = 10
KEYS = [(0, ("ann",)), (0, ("bob",)), (1, ("cy",))]


class Lives:
    """The oracle: values (or elements, or entries) with the time their lives began; nothing is ever removed."""

    def __init__(self, ttl):
        self.ttl = ttl
        self.cells = {}
        self.now_ms = 0

    def seen(self, since):
        return self.ttl.visibility == "until-cleaned" or self.living(since)

    def living(self, since):
        return self.now_ms - since < self.ttl.duration_ms

    def touch(self, cell):
        value, since = self.cells[cell]
        if self.ttl.refresh == "read-and-write" and self.living(since):
            self.cells[cell] = (value, self.now_ms)

    def read(self, cell):
        if cell not in self.cells:
            return None
        value, since = self.cells[cell]
        self.touch(cell)
        return value if self.seen(since) else None

    def of(self, prefix):
        """Every seen cell whose name begins with the prefix, without touching it."""
        size = len(prefix)
        return [cell for cell, (_, since) in self.cells.items() if cell[:size] == prefix and self.seen(since)]

    def drop(self, prefix):
        self.cells = {cell: held for cell, held in self.cells.items() if cell[: len(prefix)] != prefix}


class Pair:
    """Four states on a heap backend, and the oracle beside them."""

    def __init__(self, ttl):
        self.ttl = ttl
        self.oracle = Lives(ttl)
        self.serial = 0
        self.start(HeapBackend(range(2)))

    def start(self, backend):
        self.backend = backend
        self.descriptors = []
        states = self.states = States(backend, self.descriptors.append)
        self.value = states.value("value", list[int], ttl=self.ttl)
        self.list = states.list("list", list[int], ttl=self.ttl)
        self.map = states.map("map", str, list[int], ttl=self.ttl)
        self.total = states.reducing("total", int, lambda so_far, value: so_far + value, ttl=self.ttl)
        backend.context.now_ms = self.oracle.now_ms

    def restored(self, leave_out_expired):
        """As a checkpoint and a restore would: every cell into a new backend."""
        snapshot, old = self.backend.commit(), self.descriptors
        self.start(HeapBackend(range(2)))
        for descriptor in old:
            for key_group in range(2):
                cells = snapshot.cells(descriptor.name, key_group)
                self.backend.load(
                    descriptor, alive(cells, self.ttl, self.oracle.now_ms) if leave_out_expired else cells
                )

    def run(self, step):
        what, key_at, number = step
        oracle, (key_group, key) = self.oracle, KEYS[key_at]
        self.backend.enter(key_group)
        self.backend.context.key = key
        self.serial += 1
        fresh = (number, oracle.now_ms)
        entry = f"m{number}"
        if what == "pass":
            oracle.now_ms += number
            self.backend.context.now_ms = oracle.now_ms
        elif what == "value":
            self.value.update([number])
            oracle.cells["value", key] = fresh
        elif what == "append":
            self.list.append([number])
            oracle.cells["list", key, self.serial] = fresh
        elif what == "put list":
            self.list.put([[number], [number]])
            oracle.drop(("list", key))
            oracle.cells["list", key, self.serial, 0] = oracle.cells["list", key, self.serial, 1] = fresh
        elif what == "put list of none":
            self.list.put([])
            oracle.drop(("list", key))
        elif what == "put":
            self.map.put(entry, [number])
            oracle.cells["map", key, entry] = fresh
        elif what == "remove":
            self.map.remove(entry)
            oracle.drop(("map", key, entry))
        elif what == "add":
            self.total.add(number)
            so_far, since = oracle.cells.get(("total", key), (0, oracle.now_ms))
            oracle.cells["total", key] = ((so_far if oracle.living(since) else 0) + number, oracle.now_ms)
        elif what == "clear":
            for name, state in [("value", self.value), ("list", self.list), ("map", self.map), ("total", self.total)]:
                state.clear()
                oracle.drop((name, key))
        elif what == "restore":
            self.restored(leave_out_expired=False)
        elif what == "restore what lives":
            self.restored(leave_out_expired=True)
        else:
            self.check(what, key_at, number)

    def check(self, what, key_at, number):
        """Reads give what the oracle sees; and in a new version a change of what they gave changes no state."""
        (key_group, key), changes_it = KEYS[key_at], number % 2
        if changes_it:
            self.backend.commit()
            self.backend.enter(key_group)
            self.backend.context.key = key
        found = self.read(what, key, f"m{number}")
        if changes_it:
            for value in found:
                value.append(99)
            self.backend.commit()

    def read(self, what, key, entry):
        """Compare with what the oracle sees; the objects that were read."""
        oracle, found = self.oracle, []
        if what == "get value":
            value = oracle.read(("value", key))
            found = [self.value.get()]
            assert found == [None if value is None else [value]]
        elif what == "get list":
            expected = [[oracle.read(cell)] for cell in oracle.of(("list", key))]
            found = list(self.list.get())
            assert found == expected
        elif what == "get entry":
            value = oracle.read(("map", key, entry))
            found = [self.map.get(entry)]
            assert found == [None if value is None else [value]]
        elif what == "items":
            expected = {cell[2]: [oracle.read(cell)] for cell in oracle.of(("map", key))}
            items = dict(self.map.items())
            assert items == expected
            found = list(items.values())
        elif what == "get total":
            assert self.total.get() == oracle.read(("total", key))
        elif what == "exists":
            assert self.value.exists() == bool(oracle.of(("value", key)))
            assert self.list.exists() == bool(oracle.of(("list", key)))
            assert self.map.exists() == bool(oracle.of(("map", key)))
            assert self.map.contains(entry) == bool(oracle.of(("map", key, entry)))
            assert self.total.exists() == bool(oracle.of(("total", key)))
        elif what == "keys":
            for name in ("value", "list", "map", "total"):
                assert sorted(self.states.keys(name)) == sorted({cell[1][0] for cell in oracle.of((name,))})
        return [value for value in found if value is not None]


READS = ["get value", "get list", "get entry", "items", "get total", "exists", "keys"]
WRITES = ["value", "append", "put list", "put list of none", "put", "remove", "add", "clear"]
steps = st.tuples(
    st.sampled_from([*READS, *WRITES, *WRITES, "pass", "pass", "pass", "restore", "restore what lives"]),
    st.sampled_from(range(len(KEYS))),
    st.integers(0, 7),
)


def _run(ttl, drawn):
    pair = Pair(ttl)
    for step in drawn:
        pair.run(step)
    for what in READS:
        for key_at in range(len(KEYS)):
            pair.run((what, key_at, 0))


@pytest.mark.parametrize("clean_up", [(), ("incremental",)], ids=["not cleaned", "cleaned with every access"])
@pytest.mark.parametrize("refresh", ["write", "read-and-write"])
@settings(max_examples=150, deadline=None)
@given(drawn=st.lists(steps, max_size=40))
def test_expired_values_are_never_seen_however_they_are_removed(clean_up, refresh, drawn):
    _run(Ttl(TTL_MS, refresh, "never", clean_up), drawn)


@pytest.mark.parametrize("refresh", ["write", "read-and-write"])
@settings(max_examples=150, deadline=None)
@given(drawn=st.lists(steps.filter(lambda step: step[0] != "restore what lives"), max_size=40))
def test_until_they_are_cleaned_expired_values_are_seen(refresh, drawn):
    _run(Ttl(TTL_MS, refresh, "until-cleaned", ()), drawn)


def _entered():
    backend = HeapBackend(range(2))
    backend.enter(0)
    backend.context.key = ("ann",)
    return backend, States(backend)


def test_the_same_steps_from_the_same_state_give_the_same_even_when_time_goes_back():
    backend, states = _entered()
    count = states.value("count", int, ttl=TTL_MS)
    backend.context.now_ms = 100
    count.update(1)
    seen = []
    for now_ms in (109, 110, 50, 109, 110):
        backend.context.now_ms = now_ms
        seen.append(count.get())
    assert seen == [1, None, 1, 1, None]


def test_an_expired_default_value_is_the_default_again():
    backend, states = _entered()
    count = states.value("count", int, default=0, ttl=TTL_MS)
    count.update(5)
    backend.context.now_ms = TTL_MS
    assert count.get() == 0


def test_adding_to_an_expired_value_begins_anew_even_where_it_is_still_seen():
    backend, states = _entered()
    total = states.reducing("total", int, lambda a, b: a + b, ttl=Ttl(TTL_MS, visibility="until-cleaned"))
    total.add(5)
    backend.context.now_ms = TTL_MS
    assert total.get() == 5
    total.add(1)
    assert total.get() == 1


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_incremental_clean_up_goes_round_all_keys_a_few_with_every_access(kind):
    backend, states = _entered()
    ttl = Ttl(TTL_MS, clean_up=("incremental",))
    if kind == "value":
        state = states.value("s", int, ttl=ttl)
        put = state.update
    elif kind == "list":
        state = states.list("s", int, ttl=ttl)
        put = state.append
    else:
        state = states.map("s", int, int, ttl=ttl)
        put = lambda at: state.put(at, at)  # noqa: E731
    keys = [(at % 2, (f"k{at}",)) for at in range(4 * CELLS_PER_ACCESS)]
    for key_group, key in keys:
        backend.enter(key_group)
        backend.context.key = key
        put(1)
    backend.commit()
    backend.context.now_ms = TTL_MS
    left = []
    for _ in range(5):
        backend.enter(0)
        backend.context.key = ("somebody",)
        assert not state.exists()
        assert (backend.context.key_group, backend.context.key) == (0, ("somebody",))
        left.append(len(list(backend.keys("s"))))
    assert left == [len(keys) - CELLS_PER_ACCESS * round_ for round_ in (1, 2, 3, 4, 4)]


def test_a_large_key_is_cleaned_at_once_and_the_next_accesses_look_at_nothing():
    backend, states = _entered()
    entries = states.map("m", int, int, ttl=Ttl(TTL_MS, clean_up=("incremental",)))
    for at in range(3 * CELLS_PER_ACCESS):
        entries.put(at, at)
    backend.context.key = ("bob",)
    entries.put(0, 0)
    backend.context.now_ms = TTL_MS
    left = []
    for _ in range(4):
        backend.enter(0)
        backend.context.key = ("cy",)
        entries.get(0)
        left.append(sorted(key for _, key in backend.keys("m")))
    assert left == [[("bob",)], [("bob",)], [("bob",)], []]


def test_cleaning_a_list_does_not_make_state_of_what_was_changed_without_an_update():
    backend, states = _entered()
    numbers = states.list("numbers", list[int], ttl=Ttl(TTL_MS, clean_up=("incremental",)))
    numbers.append([1])
    backend.context.now_ms = TTL_MS - 1
    numbers.append([2])
    backend.commit()
    backend.enter(0)
    backend.context.key, backend.context.now_ms = ("ann",), TTL_MS - 1
    for number in numbers.get():
        number.append(99)
    backend.context.now_ms = TTL_MS
    numbers.exists()
    assert backend.cells("numbers", 0).values == [[([2], TTL_MS - 1)]]


def test_a_read_never_shortens_a_life_when_time_goes_back():
    backend, states = _entered()
    count = states.value("count", int, ttl=Ttl(TTL_MS, refresh="read-and-write"))
    backend.context.now_ms = 100
    count.update(1)
    for now_ms, seen in ((50, 1), (105, 1), (114, 1), (123, 1), (133, None)):
        backend.context.now_ms = now_ms
        assert count.get() == seen
