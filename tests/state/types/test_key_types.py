"""Keys in their given form, as users write them and as dictionaries on the heap hold them, and back."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.types.key_types import as_row, as_rows, given_form, given_forms

atoms = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
keys = st.integers(0, 3).flatmap(lambda fields: st.lists(st.tuples(*[atoms] * fields)))
"""Keys of one schema: all have as many fields."""


@given(keys)
def test_each_form_tells_the_other(known):
    assert list(map(as_row, map(given_form, known))) == known
    assert given_forms(known) == list(map(given_form, known))
    assert as_rows(given_forms(known)) == known


@given(st.lists(st.tuples(atoms), min_size=1))
def test_a_key_of_one_field_has_no_tuple_around_it(known):
    assert given_forms(known) == [field for (field,) in known]


def test_the_heap_holds_keys_in_their_given_form():
    backend = HeapBackend(range(8))
    count = backend.value_state(StateDescriptor("count", StateKind.VALUE, pa.schema([("number", pa.int64())])))
    tags = backend.list_state(StateDescriptor("tags", StateKind.LIST, pa.schema([("tag", pa.string())])))
    for key in [("ann",), ("ann", 1)]:
        backend.enter(3)
        backend.context.key = key
        count.update((1,))
        tags.append(("new",))
    for state in ("count", "tags"):
        assert list(backend.states[state].tables.live[3]) == ["ann", ("ann", 1)]
        assert backend.cells(state, 3).keys == [("ann",), ("ann", 1)]
