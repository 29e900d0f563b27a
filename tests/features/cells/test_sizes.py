"""The size that a cell tells, against what the allocator gave out."""

import gc
import random
import tracemalloc

import msgspec
import pytest

from millpond.features.cells.shapes import bucketed, element_wise
from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type
from tests.features.cells.test_algebra import parameter_of

CELLS = 60
MAKE = {
    "long": lambda draw: draw.getrandbits(40) + 1000,
    "double": lambda draw: draw.gauss(),
    "string": lambda draw: f"{draw.getrandbits(64):x}",
}
BY_ID = {
    cell.id: (cell, type_)
    for operation in OPERATIONS.values()
    for type_ in MAKE
    if parse_type(type_).kind in operation.types
    for make in operation.cells
    for cell in [make(parse_type(type_), parameter_of(operation))]
}


@pytest.fixture(autouse=True, scope="module")
def _small_collections():
    """Let a collection look at nothing that was there before: in a large process each would take a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def allocated(cell, stored):
    """Bytes for each of the cells that are read from stored ones, and those that the cells tell."""
    values = [None] * len(stored)
    gc.collect()
    tracemalloc.start()
    try:
        for number, one in enumerate(stored):
            values[number] = cell.decode(msgspec.msgpack.decode(one))
        # What is asked for is rounded up to 16 bytes by CPython's allocator.
        given = sum(trace.size + 15 & -16 for trace in tracemalloc.take_snapshot().traces)
    finally:
        tracemalloc.stop()
    return given / len(stored), sum(map(cell.size, values)) / len(stored)


def check(cell, columns):
    stored = [msgspec.msgpack.encode(cell.encode(cell.collect(range(len(one)), one))) for one in columns]
    allocated(cell, stored)  # what is made once is not of a cell
    real, told = allocated(cell, stored)
    assert abs(told - real) <= 0.2 * real + 16


@pytest.mark.parametrize("id_", BY_ID)
@pytest.mark.parametrize("events", [2, 40])
def test_a_cell_tells_its_memory_within_a_fifth(id_, events):
    cell, type_ = BY_ID[id_]
    draw = random.Random(9)
    check(cell, [[MAKE[type_](draw) for _ in range(events)] for _ in range(CELLS)])


@pytest.mark.parametrize("shape", [bucketed, element_wise])
def test_shaped_cells_tell_their_memory_within_a_fifth(shape):
    draw = random.Random(10)
    cell = shape(OPERATIONS["sum"].cells[0](parse_type("double"), None))
    values = {
        bucketed: lambda: (f"bucket {draw.getrandbits(32)}", draw.gauss()),
        element_wise: lambda: [draw.gauss() for _ in range(20)],
    }[shape]
    check(cell, [[values() for _ in range(20)] for _ in range(CELLS)])
