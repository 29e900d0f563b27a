"""The part of the whole product that every run tests leaves out no pair that it promises."""

from itertools import product

import pytest

from millpond.state.spi import StateKind
from tests.state.conformance.covering import cover
from tests.state.conformance.kinds import KINDS, NESTED_ROW
from tests.state.conformance.subjects import SUBJECTS

CHANGES = ["put", "remove", "clear"]
ROWS = [
    {"subject": subject, "kind": kind, "shape": shape, "change": change}
    for subject in SUBJECTS
    for kind, shape, change in product(KINDS if subject.every_kind else [NESTED_ROW], StateKind, CHANGES)
]
BEHAVIOURS = [f"behaviour {number}" for number in range(8)]


def chosen(behaviour):
    return [ROWS[number] for number in cover(behaviour, ROWS)]


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_every_subject_is_tested(behaviour):
    assert {row["subject"].name for row in chosen(behaviour)} == {subject.name for subject in SUBJECTS}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("parameter", ["kind", "shape", "change"])
def test_every_layer_is_tested_with_every_value_that_the_whole_product_has(behaviour, parameter):
    def pairs(rows):
        return {(row["subject"].layer, repr(row[parameter])) for row in rows}

    assert pairs(chosen(behaviour)) == pairs(ROWS)


def test_over_some_behaviours_every_subject_is_tested_with_every_shape():
    met = {(row["subject"].name, row["shape"]) for behaviour in map(str, range(40)) for row in chosen(behaviour)}
    assert met == {(subject.name, shape) for subject in SUBJECTS for shape in StateKind}


def test_it_is_a_fraction_of_the_whole_product_and_another_one_for_every_behaviour():
    numbers = [cover(behaviour, ROWS) for behaviour in BEHAVIOURS]
    assert max(map(len, numbers)) < len(ROWS) / 4
    assert len({tuple(each) for each in numbers}) == len(BEHAVIOURS)
