"""Where cells lie in a spill file, and back."""

from hypothesis import given
from hypothesis import strategies as st

from millpond.state.backend import lmdb_keys as places
from millpond.state.backend.protocols import ABSENT
from millpond.state.spillable.spill_file import LONGEST_KEY_BYTES
from millpond.state.types.key_types import given_form

texts = st.text(max_size=5) | st.integers(230, 700).map("x".__mul__)
keys = st.tuples(texts | st.integers(-5, 5) | st.none() | st.booleans()) | st.tuples(texts, st.integers(0, 3))
PREFIX = places.state_prefix(3)
PLACE = places.flat_place(PREFIX)


@given(keys, st.binary(max_size=20))
def test_a_cell_is_read_as_it_was_placed(key, data):
    at = PLACE(given_form(key))
    [placed], [stored], gone = places.flat_columns([at], [data], bytes)
    assert (placed, gone) == (at, [])
    assert repr(places.key_of(at)) == repr(given_form(key))
    assert len(at) <= LONGEST_KEY_BYTES
    assert (repr(places.flat_key(at, stored)), places.flat_data(at, stored)) == (repr(key), data)


@given(keys, keys, st.binary(max_size=20))
def test_an_entry_is_read_as_it_was_placed(key, map_key, data):
    entries = places.entries_prefix(PREFIX, key)
    at = places.entry_place(entries, map_key)
    stored = places.entry_stored(at, key, map_key, data)
    assert len(at) <= LONGEST_KEY_BYTES
    assert at.startswith(entries)
    assert repr(places.entry(at, stored)) == repr(places.Entry(key, map_key, data))


@given(st.lists(keys, unique_by=repr, max_size=10))
def test_no_key_s_entries_lie_among_another_s(known):
    prefixes = [places.entries_prefix(PREFIX, key) for key in known]
    for number, prefix in enumerate(prefixes):
        assert not any(other.startswith(prefix) for at, other in enumerate(prefixes) if at != number)


@given(keys, keys)
def test_different_keys_have_different_places(one, other):
    assert (PLACE(given_form(one)) == PLACE(given_form(other))) == (repr(one) == repr(other))


@given(st.lists(keys, unique_by=repr, max_size=10), st.integers(0, 9))
def test_what_is_gone_is_told_from_what_is_there(known, number):
    all_places = [PLACE(given_form(key)) for key in known]
    values = [ABSENT if at == number else at for at in range(len(known))]
    kept, stored, gone = places.flat_columns(all_places, values, lambda value: b"%d" % value)
    assert gone == all_places[number : number + 1]
    assert kept == [at for at, value in zip(all_places, values, strict=True) if value is not ABSENT]
    assert list(map(places.flat_data, kept, stored)) == [b"%d" % value for value in values if value is not ABSENT]


@given(st.lists(st.binary(min_size=3, max_size=30), unique=True))
def test_places_that_are_put_in_order_are_the_same_ones(known):
    ordered, values = places.in_order(known.copy(), [at[::-1] for at in known])
    assert sorted(ordered) == sorted(known)
    assert values == [at[::-1] for at in ordered]
    if len({len(at) for at in known}) > 1:
        assert ordered == sorted(known)


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=31), st.binary(max_size=5), st.binary(max_size=5))
def test_places_of_one_length_are_put_in_the_order_of_where_they_differ(numbers, before, after):
    known = [PREFIX + before + number.to_bytes(8, "big") + after for number in numbers]
    ordered = [at[len(PREFIX + before) :] for at in places.in_order(known, numbers)[0]]
    # Eight bytes from the first that differs: what follows may come before them only where these are alike.
    assert ordered == sorted(ordered)
