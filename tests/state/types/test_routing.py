"""Places of keys: what is no key of the schema has none, whatever key came before it."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import DataError
from millpond.state.types.routing import KeyPlaces

NUMBER = pa.schema([("key", pa.int64())])
PAIR = pa.schema([("user", pa.string()), ("number", pa.int64())])


def places(schema):
    return KeyPlaces(schema, ["only"], max_parallelism=128)


@pytest.mark.parametrize("wrong", [True, np.True_])
@pytest.mark.parametrize("schema", [NUMBER, PAIR])
def test_a_bool_is_no_integer_key_though_the_integer_came_first(schema, wrong):
    found = places(schema)
    of = (lambda key: key) if schema is NUMBER else (lambda key: ("ann", key))
    assert found.find(of(1)) == found.find(of(1)) == found.find(of(np.int64(1)))
    for _ in range(2):
        with pytest.raises(DataError, match="is int64, got bool True"):
            found.find(of(wrong))
        # As the harness looks.
        assert of(wrong) not in found.remembered
    assert found.find(of(1))[2] == ((1,) if schema is NUMBER else ("ann", 1))


def test_an_integer_is_no_bool_key_though_the_bool_came_first():
    found = places(pa.schema([("key", pa.bool_())]))
    assert found.find(True)[2] == (True,)
    with pytest.raises(DataError, match="is bool, got int 1"):
        found.find(1)


MIXED = st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.none()


@given(st.lists(MIXED), st.sampled_from([pa.int64(), pa.float64(), pa.bool_()]))
def test_a_key_has_the_place_that_it_would_have_alone(keys, kind):
    schema = pa.schema([("key", kind)])
    together = places(schema)
    for key in keys:
        assert _place(together, key) == _place(places(schema), key)


def _place(found, key):
    try:
        place = found.find(key)
    except DataError as error:
        return str(error)
    return place, type(place[3])
