"""The stored form of every cell, in hexadecimal MessagePack. The file is never edited: a new form gets a new id."""

import json
from pathlib import Path

import msgspec
import pytest

from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type
from tests.features.cells.test_algebra import TYPES_OF, cells_of, collected
from tests.features.values import FEW

GOLDEN = Path(__file__).parent / "golden_cells.json"


def stored_forms():
    """By cell id: the stored form of a few values, one each millisecond."""
    forms = {}
    for name in OPERATIONS:
        for type_ in TYPES_OF[name]:
            for cell in cells_of(name, type_):
                value = collected(cell, list(enumerate(FEW[type_])), type_)
                forms[cell.id] = msgspec.msgpack.encode(cell.encode(value)).hex()
    return forms


GOLDEN_FORMS = json.loads(GOLDEN.read_text())


def test_every_cell_still_writes_its_golden_bytes():
    assert stored_forms() == GOLDEN_FORMS


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_golden_cell_still_reads(name):
    for type_ in TYPES_OF[name]:
        for cell in cells_of(name, type_):
            value = cell.decode(msgspec.msgpack.decode(bytes.fromhex(GOLDEN_FORMS[cell.id])))
            assert value == collected(cell, list(enumerate(FEW[type_])), type_)
            assert parse_type(type_).kind in OPERATIONS[name].types
