import random
import sys
from collections import Counter

import msgspec
import pytest

from millpond.errors import MissingDependencyError
from millpond.features.cells import sketches
from millpond.features.cells.sketches import approx_unique_cells, frequent_cells, open_sketch, percentile_cells
from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type

DOUBLE, LONG, STRING = parse_type("double"), parse_type("long"), parse_type("string")
MANY = 20_000


def split(values, parts, draw):
    groups = [[] for _ in range(parts)]
    for value in values:
        draw.choice(groups).append(value)
    return groups


def in_a_random_tree(cell, values, draw):
    """Collect in a random number of groups, and merge these in a random tree."""
    cells = [cell.collect([0] * len(group), group) for group in split(values, draw.randint(1, 9), draw)]
    while len(cells) > 1:
        draw.shuffle(cells)
        together = draw.randint(2, 3)
        cells = [cell.merge_all(cells[:together]) if together == 3 else cell.merge(*cells[:2]), *cells[together:]]
    return cells[0]


@pytest.mark.parametrize("distinct", [1, 100, 190, 250, 2_000, 50_000])
def test_distinct_counts_merge_to_the_byte_in_any_tree(distinct):
    draw = random.Random(distinct)
    values = [draw.getrandbits(60) for _ in range(distinct)]
    values += draw.choices(values, k=distinct // 2)
    cell = approx_unique_cells(LONG)
    whole = cell.collect([0] * len(values), values)
    for _ in range(5):
        assert in_a_random_tree(cell, values, draw) == whole
    estimate = OPERATIONS["approx_unique_count"].finisher(LONG, None)(whole)
    assert abs(estimate - distinct) <= 4 * 0.016 * distinct


@pytest.mark.parametrize("type_", ["string", "binary", "double", "decimal(38,2)", "date", "boolean", "long"])
def test_distinct_values_of_every_type_are_told_apart(type_):
    inside = {
        "string": ["", "a", "b"],
        "binary": [b"", b"\x00", b"\x00\x00"],
        "double": [0.0, 1.0, 0.5],
        "decimal(38,2)": [0, 10**30, -1],
        "date": [0, 1, -1],
        "boolean": [True, False],
        "long": [-(1 << 63), 1 - (1 << 63), -(1 << 53) - 1, -(1 << 53), -1, 0, (1 << 63) - 2, (1 << 63) - 1],
    }[type_]
    cell = approx_unique_cells(parse_type(type_))
    finish = OPERATIONS["approx_unique_count"].finisher(parse_type(type_), None)
    assert finish(cell.collect([0] * 9, inside * 3)) == len(inside)


def rank_error(ordered, percentile, answer):
    """How far the answer's rank is from the asked one; equal values have a range of ranks."""
    low = sum(value < answer for value in ordered) / len(ordered)
    high = sum(value <= answer for value in ordered) / len(ordered)
    return max(0.0, low - percentile, percentile - high)


def test_percentiles_of_many_values_are_within_the_sketchs_bound():
    draw = random.Random(3)
    values = [draw.gauss() for _ in range(MANY)]
    percentiles = (0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 1.0)
    cell, finish = percentile_cells(DOUBLE), OPERATIONS["approx_percentile"].finisher(DOUBLE, percentiles)
    ordered = sorted(values)
    for _ in range(3):
        answers = finish(in_a_random_tree(cell, values, draw))
        # The bound holds in 99 of 100 cases; twice of it is never seen.
        bound = 2 * sketches.library().kll_doubles_sketch.get_normalized_rank_error(sketches.PERCENTILE_K, False)
        assert all(
            rank_error(ordered, percentile, answer) <= bound
            for percentile, answer in zip(percentiles, answers, strict=True)
        )
        assert (answers[0], answers[-1]) == (ordered[0], ordered[-1])


def test_percentiles_are_exact_and_merge_to_the_byte_up_to_200_values():
    draw = random.Random(4)
    values = [draw.gauss() for _ in range(sketches.PERCENTILE_K)]
    cell = percentile_cells(DOUBLE)
    assert in_a_random_tree(cell, values, draw) == tuple(sorted(values))
    assert type(cell.merge(tuple(sorted(values)), (1.0,))) is bytes


def test_frequent_values_of_many_are_within_the_sketchs_bound():
    draw = random.Random(5)
    values = [int(draw.paretovariate(1.0)) for _ in range(MANY)]
    cell, finish = frequent_cells(LONG, 5), OPERATIONS["approx_histogram_k"].finisher(LONG, 5)
    counts = Counter(values)
    assert len(counts) > 192
    for _ in range(3):
        answers = finish(in_a_random_tree(cell, values, draw))
        bound = 3.5 / 256 * MANY
        assert len(answers) == 5
        assert all(abs(counts[value] - count) <= bound for value, count in answers.items())
        assert set(list(answers)[:3]) == {1, 2, 3}


def test_frequent_values_are_exact_and_merge_to_the_byte_while_few():
    draw = random.Random(6)
    values = draw.choices([f"v{n}" for n in range(192)], k=2_000)
    cell = frequent_cells(STRING, 3)
    assert in_a_random_tree(cell, values, draw) == Counter(values)
    assert type(cell.merge(dict(Counter(values)), {"another": 1, "and another": 1})) is bytes


@pytest.mark.parametrize("make", [approx_unique_cells, percentile_cells, frequent_cells])
def test_a_merge_changes_no_sketch_that_it_is_given(make):
    cell = make(LONG, 3)
    one, other = (cell.collect(range(1_000), range(start, start + 1_000)) for start in (0, 500))
    before = bytes(one), bytes(other)
    cell.merge(one, other)
    cell.merge_all([one, other, one])
    assert (one, other) == before


@pytest.mark.parametrize("make", [approx_unique_cells, percentile_cells, frequent_cells])
def test_no_byte_of_a_stored_sketch_can_be_changed_or_lost_unnoticed(make):
    cell, draw = make(LONG, 3), random.Random(8)
    stored = cell.encode(cell.collect(range(1_000), range(1_000)))
    assert cell.decode(stored) == open_sketch(stored)
    for _ in range(500):
        altered = bytearray(stored)
        altered[draw.randrange(len(altered))] ^= draw.randint(1, 255)
        for wrong in (bytes(altered), stored[: draw.randrange(len(stored))]):
            with pytest.raises((ValueError, TypeError)):
                cell.decode(wrong)


def test_stored_sketches_are_msgpack():
    for make in (approx_unique_cells, percentile_cells, frequent_cells):
        cell = make(LONG, 3)
        value = cell.collect(range(1_000), range(1_000))
        assert cell.decode(msgspec.msgpack.decode(msgspec.msgpack.encode(cell.encode(value)))) == value


@pytest.mark.parametrize("name", ["approx_unique_count", "approx_percentile", "approx_histogram_k"])
def test_without_the_library_the_line_that_installs_it_is_told(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'millpond\[features\]'"):
        OPERATIONS[name].cells[0](LONG, 3)
