"""Whatever bytes a store gives, a decoder takes little memory; and what a cell or a key may be made of.

That a decoder gives a value or says that the bytes are corrupt is tested in `tests/fuzz`.
"""

import tracemalloc
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random

import msgspec
import pytest
from hypothesis import settings

from millpond.errors import CorruptionError, DataError
from millpond.features import (
    Aggregation,
    Field,
    GroupBy,
    compile_group_by,
)
from millpond.features.compiled_cells import compile_cells
from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type
from tests.features.values import FEW
from tests.fuzz.feature_values import FEATURE_DECODERS as DECODERS
from tests.fuzz.mutations import HUGE, changed

TRIES = 2_000
USUAL_EXAMPLES = 100
"""Of Hypothesis; under ``--hypothesis-profile=soak`` every cell, too, gets all tries."""

PARAMETERS = {"k": {"k": 3}, "percentiles": {"percentiles": (0.5,)}, None: {}}
SHAPES = ("{}", "array<{}>", "map<string,{}>")

SEED = 20_240_229
MOST_BYTES = 8 << 20
"""Far above what any input of a few hundred bytes needs, and far below what a length in it can ask for."""


@pytest.mark.parametrize("rubbish", HUGE.values(), ids=HUGE)
@pytest.mark.parametrize("name", DECODERS)
def test_no_stored_length_or_depth_asks_for_much_memory(name, rubbish):
    decode, right, seal_body, begin, head = DECODERS[name]
    fixed = right[begin : begin + head]
    forms = [seal_body(fixed + rubbish)]
    if head:
        numbers = msgspec.msgpack.decode(right[begin + head :])
        # The rubbish in place of each of the parts, in turn.
        parts = [msgspec.msgpack.encode(one) for one in numbers]
        size = b"\xdc" + len(parts).to_bytes(2, "big")
        forms += [
            seal_body(fixed + size + b"".join([*parts[:place], rubbish, *parts[place + 1 :]]))
            for place in (0, 1, 4, len(parts) - 1)
        ]
    for data in forms:
        with pytest.raises(CorruptionError):
            decode(data)
        assert peak_bytes(decode, data) < MOST_BYTES


def peak_bytes(decode, data):
    tracemalloc.start()
    try:
        decode(data)
    except (CorruptionError, ValueError, TypeError):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def cells_of_all_shapes():
    found = {}
    for name, rule in OPERATIONS.items():
        for kind in ("string", "long", "double", "decimal(38,10)", "date"):
            if parse_type(kind).kind not in rule.types:
                continue
            for shape in SHAPES:
                inputs = (Field("c", shape.format(kind)), Field("b", "string"))
                shapes = [{}, {"buckets": ("b",)}, *([{"element_wise": True}] if shape.startswith("array") else [])]
                for options in shapes:
                    one = Aggregation(name, "c", **options, **PARAMETERS[rule.parameter])
                    cells = compile_cells(GroupBy("g", (Field("k", "string"),), inputs, (one,)))
                    for position, cell in enumerate(cells.cells):
                        found[cell.id] = (cells, position, kind, shape)
    return found


CELLS = cells_of_all_shapes()


RUBBISH = (
    *(None, True, -1, 0, 1, 1 << 63, -(1 << 63), (1 << 64) - 1, 0.5, float("nan"), float("inf"), -0.0),
    *("", "a", b"", b"\xff" * 25, b"\xff\xff\x01", b"\x00\x00", b"\x01" * 9_000),
    *([], [[]], {}, {"a": 1}, [None], [1], [1, 1], [1, 2, 3], [0, "a", 0, "b"]),
    *(["a", 1], ["a", None, "a", None], ["b", 1, "a", 2], [[1, "a"]]),
)
MOST_DEPTH = 3


def rubbish_of(random, right, depth=0):
    """Give what MessagePack can give: a change of what is right, or something else."""
    kind = random.randrange(9)
    if kind < 4 and isinstance(right, list) and right:
        place = random.randrange(len(right))
        return [*right[:place], rubbish_of(random, right[place], depth), *right[place + 1 :]]
    if kind == 4 and isinstance(right, list):
        return right[: random.randrange(len(right) + 1)]
    if kind == 5 and isinstance(right, bytes):
        return changed(random, right)
    nested = [rubbish_of(random, right, depth + 1) for _ in range(random.randrange(3))] if depth < MOST_DEPTH else []
    return random.choice((*RUBBISH, random.randbytes(25), nested))


@pytest.mark.parametrize("kind", ["string", "long", "double", "decimal(38,10)", "date"])
def test_a_cell_decodes_to_one_that_can_be_merged_and_stored_or_is_refused(kind):
    random = Random(SEED)
    of_kind = [(cell_id, *rest) for cell_id, (*rest, of, _) in CELLS.items() if of == kind]
    for cell_id, compiled, position in of_kind:
        cell = compiled.cells[position]
        shape = CELLS[cell_id][3]
        value = FEW[kind][-1]
        column = {"{}": value, "array<{}>": [value, None, FEW[kind][0]], "map<string,{}>": {"a": value}}[shape]
        right = msgspec.msgpack.decode(
            msgspec.msgpack.encode(cell.encode(compiled.collect([5, 6], [(column, "x"), (column, "y")])[position]))
        )
        assert cell.encode(cell.decode(right)) == right
        for _ in range(TRIES if settings().max_examples > USUAL_EXAMPLES else TRIES // 5):
            stored = rubbish_of(random, right)
            try:
                decoded = cell.decode(stored)
            except (ValueError, TypeError):
                continue
            again = cell.encode(cell.merge(decoded, cell.empty))
            assert cell.encode(cell.decode(msgspec.msgpack.decode(msgspec.msgpack.encode(again)))) == again, cell_id


@pytest.mark.parametrize("cell_id", [one for one in CELLS if one.startswith("sum") and ":double:c" in one])
def test_no_shift_of_a_stored_sum_asks_for_much_memory(cell_id):
    compiled, position, *_ = CELLS[cell_id]
    inner = compiled.cells[position]
    for stored in (b"\xff\xff\x01", b"\xff\xff" + b"\x01" * 25, b"\x00\x00" + b"\x01" * 100_000):
        for shaped in (stored, [stored], ["a", stored], ["x", ["a", stored]]):
            assert peak_bytes(inner.decode, shaped) < MOST_BYTES


KEY_TYPES = tuple(FEW)
PARTS = (
    *(None, True, -1, 1 << 63, -(1 << 63) - 1, 10**400, 0.5, float("nan"), float("inf"), 1j),
    *("", "\ud800", "a\x00b", b"", b"\xff" * 40, [], [1], {}, {"a": 1}, (), object()),
    *(
        date.max,
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        Decimal("NaN"),
        Decimal("1E+400"),
        Decimal("-0.001"),
    ),
)


def test_a_key_of_any_values_is_encoded_or_refused_as_bad_data():
    plan = compile_group_by(
        GroupBy("keyed", tuple(Field(f"k{n}", type_) for n, type_ in enumerate(KEY_TYPES)), (), (Aggregation("count"),))
    )
    random, encoded = Random(SEED), set()
    names = [field.name for field in plan.group_by.keys]
    for _ in range(TRIES):
        key = [random.choice(FEW[type_]) for type_ in KEY_TYPES]
        for _ in range(random.randrange(2)):
            key[random.randrange(len(key))] = random.choice(PARTS)
        given = dict(zip(names, key, strict=True)) if random.random() < 0.5 else key[: random.choice((len(key), 3))]
        try:
            encoded.add(type(plan.encode_key(given)))
        except DataError:
            encoded.add(DataError)
    assert encoded == {bytes, type(None), DataError}
