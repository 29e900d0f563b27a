"""What every operation owes, over every type that it takes."""

import itertools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type
from tests.features import operation_oracle
from tests.features.values import FEW, SCALARS, scalars

TIMES = st.integers(0, 5) | st.integers(-(1 << 40), 1 << 42)
QUICK = settings(deadline=None, max_examples=25)
TYPES_OF = {
    name: [type_ for type_ in SCALARS if parse_type(type_).kind in operation.types]
    for name, operation in OPERATIONS.items()
}


def parameter_of(operation):
    return {"k": operation_oracle.K, "percentiles": operation_oracle.PERCENTILES, None: None}[operation.parameter]


def cells_of(name, type_):
    operation = OPERATIONS[name]
    return [make(parse_type(type_), parameter_of(operation)) for make in operation.cells]


def pairs_of(type_, max_size=6):
    return st.lists(st.tuples(TIMES, scalars(type_)), max_size=max_size)


def collected(cell, pairs, type_):
    return cell.collect([time for time, _ in pairs], parse_type(type_).inward([value for _, value in pairs]))


def stored(cell, value):
    return msgspec.msgpack.encode(cell.encode(value))


@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
@QUICK
def test_an_answer_is_the_oracles_in_any_order_and_grouping(name, data):
    type_ = data.draw(st.sampled_from(TYPES_OF[name]))
    pairs = data.draw(pairs_of(type_))
    operation, cells = OPERATIONS[name], cells_of(name, type_)
    cut = data.draw(st.integers(0, len(pairs)))
    merged = [cell.merge(collected(cell, pairs[cut:], type_), collected(cell, pairs[:cut], type_)) for cell in cells]
    value = operation.finisher(parse_type(type_), parameter_of(operation))(*merged)
    assert value == operation_oracle.answer(name, pairs, type_)
    assert type(value) is type(operation_oracle.answer(name, pairs, type_))


@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
@QUICK
def test_merging_is_associative_and_commutative_to_the_byte(name, data):
    type_ = data.draw(st.sampled_from(TYPES_OF[name]))
    lists = [data.draw(pairs_of(type_, 3)) for _ in range(3)]
    for cell in cells_of(name, type_):
        parts = [collected(cell, pairs, type_) for pairs in lists]
        before = [stored(cell, part) for part in parts]
        whole = stored(cell, collected(cell, [*lists[0], *lists[1], *lists[2]], type_))
        for one, two, three in itertools.permutations(parts):
            assert stored(cell, cell.merge(cell.merge(one, two), three)) == whole
            assert stored(cell, cell.merge(one, cell.merge(two, three))) == whole
            assert stored(cell, cell.merge_all([one, two, three])) == whole
        assert cell.merge(parts[0], cell.empty) == cell.merge(cell.empty, parts[0]) == parts[0]
        assert cell.merge_all([parts[0]]) == parts[0]
        assert cell.collect([], []) == cell.merge_all([]) == cell.empty
        assert [stored(cell, part) for part in parts] == before, "a merge changed what it was given"


@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
@QUICK
def test_a_delete_undoes_a_collect_also_before_it_came(name, data):
    type_ = data.draw(st.sampled_from(TYPES_OF[name]))
    one, two = data.draw(pairs_of(type_)), data.draw(pairs_of(type_))
    for cell in cells_of(name, type_):
        if cell.delete is not None:
            kept, gone = collected(cell, one, type_), collected(cell, two, type_)
            assert stored(cell, cell.delete(cell.merge(kept, gone), gone)) == stored(cell, kept)
            early = cell.decode(msgspec.msgpack.decode(stored(cell, cell.delete(cell.empty, gone))))
            assert stored(cell, cell.merge(early, cell.merge(kept, gone))) == stored(cell, kept)


@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
@QUICK
def test_cells_survive_their_stored_form(name, data):
    type_ = data.draw(st.sampled_from(TYPES_OF[name]))
    pairs = data.draw(pairs_of(type_))
    for cell in cells_of(name, type_):
        value = collected(cell, pairs, type_)
        read = cell.decode(msgspec.msgpack.decode(stored(cell, value)))
        assert read == value
        assert stored(cell, read) == stored(cell, value)
        if cell.plain:
            assert cell.encode(value) is value


RUBBISH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
@QUICK
def test_rubbish_is_refused_or_is_a_cell(name, data):
    type_ = data.draw(st.sampled_from(TYPES_OF[name]))
    rubbish = data.draw(RUBBISH)
    for cell in cells_of(name, type_):
        try:
            read = cell.decode(rubbish)
        except (ValueError, TypeError):
            continue
        assert cell.merge(read, cell.empty) == read
        assert stored(cell, read) == msgspec.msgpack.encode(rubbish)


@pytest.mark.parametrize(("name", "type_"), [(name, type_) for name, types in TYPES_OF.items() for type_ in types])
def test_bytes_that_were_altered_or_cut_are_refused_or_are_a_cell(name, type_):
    values = random.Random(7).choices(FEW[type_], k=5)
    for cell in cells_of(name, type_):
        for place, change in itertools.product(range(60), (1, 64, 128, None)):
            data = bytearray(stored(cell, collected(cell, list(enumerate(values)), type_)))
            if place >= len(data):
                continue
            if change is None:
                del data[place:]
            else:
                data[place] ^= change
            try:
                cell.size(cell.decode(msgspec.msgpack.decode(bytes(data))))
            except (ValueError, TypeError, msgspec.DecodeError):
                continue


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_data_is_none_and_not_zero(name):
    operation = OPERATIONS[name]
    for type_ in TYPES_OF[name]:
        finish = operation.finisher(parse_type(type_), parameter_of(operation))
        assert finish(*[cell.empty for cell in cells_of(name, type_)]) is None
