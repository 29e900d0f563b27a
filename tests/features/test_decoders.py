"""Whatever bytes a store gives, a decoder gives a value or says that they are corrupt: soon, and in little memory.

Three kinds of wrong bytes: random ones; right ones with changes; and changed ones under a right checksum,
as a fault before the seal, or a stranger, would leave them.
"""

import tracemalloc
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random

import msgspec
import pytest
from hypothesis import settings

from millpond.errors import CorruptionError, DataError
from millpond.features import (
    CLOSING_KEY,
    Aggregation,
    ClosingTime,
    EntitySource,
    Field,
    GroupBy,
    ServingInfo,
    Tile,
    closing_time,
    compile_group_by,
    decode_marker,
    encode_closing_time,
    encode_marker,
)
from millpond.features.answering import BatchDecoder, TileDecoder
from millpond.features.compiled_cells import compile_cells
from millpond.features.format_1 import definition_hash
from millpond.features.operations import OPERATIONS
from millpond.features.sealing import HEADER, seal
from millpond.features.types import parse_type
from millpond.kv import Get, MemoryStore, Put
from millpond.spark.features.upload_lease import LEASE_DATASET, UploadLease
from tests.features.oracle import DAY, MINUTE
from tests.features.test_codec import GOLDEN, golden_plan
from tests.features.values import FEW

TRIES = 2_000
USUAL_EXAMPLES = 100
"""Of Hypothesis; under ``--hypothesis-profile=soak`` every cell, too, gets all tries."""

SEED = 20_240_229
MOST_BYTES = 8 << 20
"""Far above what any input of a few hundred bytes needs, and far below what a length in it can ask for."""

B = 16_000 * DAY
PARAMETERS = {"k": {"k": 3}, "percentiles": {"percentiles": (0.5,)}, None: {}}
SHAPES = ("{}", "array<{}>", "map<string,{}>")


def wide_plan():
    """Every operation, over columns of several types and shapes."""
    inputs = (
        Field("n", "long"),
        Field("x", "double"),
        Field("t", "string"),
        Field("d", "decimal(38,10)"),
        Field("a", "array<long>"),
        Field("m", "map<string,double>"),
    )
    declared = [
        Aggregation(name, field.name, ("1h", None), **PARAMETERS[rule.parameter])
        for name, rule in OPERATIONS.items()
        for field in inputs
        if parse_type(field.type).scalar.kind in rule.types
    ]
    return compile_group_by(GroupBy("wide", (Field("k", "string"),), inputs, tuple(declared)))


WIDE = wide_plan()
KEY = WIDE.encode_key(("EWR",))
EVENTS = [
    (B - 40 * DAY + n * 7 * DAY, (n, n / 3, f"t{n}", None, [n, None, 7], {"a": 0.5, "b": float(n)})) for n in range(6)
]
ROW = GroupBy(
    "row",
    (Field("k", "string"),),
    tuple(
        Field(f"c{n}", type_)
        for n, type_ in enumerate((*FEW, "array<date>", "map<string,decimal(9,2)>", "map<long,timestamp>"))
    ),
    accuracy="snapshot",
)
VALUES = compile_group_by(ROW)
OLD = golden_plan()
OLD_KEY = OLD.encode_key(("JFK", -2, 0.5, True))
INFO = ServingInfo("route", "c0ffee", DAY, DAY + 7, "route.batch.1.2", "route.stream.1", "c0ffee00", "ab" * 8, (1, 2))


def lease(data):
    """Read a lease as an upload does."""
    store = MemoryStore()
    store.put_many(LEASE_DATASET, [Put(b"route", data)])
    return UploadLease(store, "route", lambda: 0)._read()


def stored_lease():
    store = MemoryStore()
    UploadLease(store, "route", lambda: 0).take()
    ((row,),) = store.get_many([Get(LEASE_DATASET, b"route")])
    return row.value


def old(body):
    """Seal a body as format 1 did."""
    return b"\x01" + bytes.fromhex(definition_hash(OLD.group_by)[:8]) + zlib.crc32(body).to_bytes(4, "big") + body


def sealed(version, address):
    return lambda body: seal(version, body, address)


COLLECTED = WIDE.collect([time for time, _ in EVENTS], [inputs for _, inputs in EVENTS])
TILE = WIDE.encode_tile(KEY, Tile(B, MINUTE, ir=COLLECTED))
BATCH = WIDE.encode_batch(KEY, WIDE.batch_ir(EVENTS, B))
VALUE_ROW = VALUES.encode_values(
    KEY,
    [
        *(values[-1] for values in FEW.values()),
        [FEW["date"][1], None],
        {"a": FEW["decimal(9,2)"][2]},
        {-1: FEW["timestamp"][0]},
    ],
    B,
)
HEAD = 5 + len(WIDE.cells.cells) * 4
ENTITY = compile_group_by(
    GroupBy(
        "entity",
        (Field("k", "string"),),
        (Field("n", "long"), Field("m", "map<string,double>")),
        (
            Aggregation("sum", "n", ("1h", None)),
            Aggregation("last_k", "n", ("1h",), k=2),
            Aggregation("max", "m", ("1d",)),
        ),
        (EntitySource("rows", "changes"),),
    )
)
ENTITY_TILE = ENTITY.encode_tile(
    KEY,
    Tile(B, ENTITY.tile_ms, ir=ENTITY.tile_cells.collect([B, B - DAY], [(1, {"a": 0.5}), (7, {"b": 1.0, "c": 2.0})])),
)

# decoder, right bytes, how a body is sealed, where the body begins, how much of the body is a fixed head
DECODERS = {
    "tile": (lambda data: WIDE.decode_tile(KEY, data), TILE, sealed(2, KEY), HEADER.size, HEAD),
    "tile, as fetched": (lambda data: TileDecoder(WIDE).decode(KEY, data), TILE, sealed(2, KEY), HEADER.size, HEAD),
    "batch row": (lambda data: WIDE.decode_batch(KEY, data), BATCH, sealed(2, b"batch" + KEY), HEADER.size, 4),
    "batch row, as fetched": (
        lambda data: BatchDecoder(WIDE).decode(KEY, data),
        BATCH,
        sealed(2, b"batch" + KEY),
        HEADER.size,
        4,
    ),
    "row of values": (
        lambda data: VALUES.decode_values(KEY, data),
        VALUE_ROW,
        sealed(2, b"values" + KEY),
        HEADER.size,
        4,
    ),
    "marker": (
        lambda data: decode_marker(KEY, data),
        encode_marker(KEY, 300),
        sealed(1, b"marker" + KEY),
        HEADER.size,
        0,
    ),
    "closing time": (
        lambda data: closing_time([data]),
        encode_closing_time(ClosingTime(0, 1, B)),
        sealed(1, CLOSING_KEY),
        HEADER.size,
        0,
    ),
    "serving info": (ServingInfo.decode, INFO.encode(), sealed(2, b"serving_info"), HEADER.size, 0),
    "serving info of format 1": (
        ServingInfo.decode,
        (GOLDEN / "serving_info_v1.bin").read_bytes(),
        lambda body: b"\x01" + body,
        1,
        0,
    ),
    "batch row of format 1": (
        lambda data: OLD.decode_batch(OLD_KEY, data),
        (GOLDEN / "batch_v1.bin").read_bytes(),
        old,
        9,
        0,
    ),
    "tile of format 1": (lambda data: OLD.decode_tile(OLD_KEY, data), (GOLDEN / "tile_v1.bin").read_bytes(), old, 9, 0),
    "tile by own times": (
        lambda data: ENTITY.decode_tile(KEY, data),
        ENTITY_TILE,
        sealed(2, KEY),
        HEADER.size,
        5 + len(ENTITY.tile_cells.cells) * 4,
    ),
    "tile by own times, as fetched": (
        lambda data: TileDecoder(ENTITY).decode(KEY, data),
        ENTITY_TILE,
        sealed(2, KEY),
        HEADER.size,
        5 + len(ENTITY.tile_cells.cells) * 4,
    ),
    "upload lease": (lease, stored_lease(), sealed(1, b"route"), HEADER.size, 0),
}

NESTED = b"\x91" * 200_000
HUGE = {
    "lists in lists": NESTED,
    "maps in maps": b"\x81\xa1a" * 100_000,
    "a list of 4 billion items": b"\xdd\xff\xff\xff\xff",
    "lists of 128 million items in each other": b"\xdd\x08\x00\x00\x00" * 40,
    "a map of 4 billion items": b"\xdf\xff\xff\xff\xff",
    "4 GiB of bytes": b"\xc6\xff\xff\xff\xff",
    "a text that is no text": b"\x92\xa2\xff\xfe\x01",
    "a date that cannot be": b"\x91\xc7\x0c\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    "unhashable keys": b"\x91\x82\x81\x01\x02\x03\x80\x04",
}


def changed(random, data):
    """Give the bytes with some of them altered, left out, doubled or put in."""
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(data) + 1)
        kind = random.randrange(5)
        if kind == 0 and place < len(data):
            data[place] = random.randrange(256)
        elif kind == 1 and place < len(data):
            data[place] ^= 1 << random.randrange(8)
        elif kind == 2:
            del data[place : place + random.randrange(1, 9)]
        elif kind == 3:
            data[place:place] = data[place : place + random.randrange(1, 20)]
        else:
            data[place:place] = random.choice((*HUGE.values(),))[:40] if random.random() < 0.3 else random.randbytes(3)
    return bytes(data)


def inputs_of(random, right, seal_body, begin, head):
    """Random bytes, changed bytes, and changed bodies under a right checksum."""
    body = right[begin:]
    for number in range(TRIES):
        kind = number % 4
        if kind == 0:
            yield random.randbytes(random.randrange(80))
        elif kind == 1:
            yield changed(random, right)
        elif kind == 2:
            yield seal_body(body[:head] + random.randbytes(random.randrange(40)))
        else:
            yield seal_body(body[:head] + changed(random, body[head:]))


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_gives_a_value_or_says_that_the_bytes_are_corrupt(name):
    decode, right, seal_body, begin, head = DECODERS[name]
    decode(right)
    assert seal_body(right[begin:]) == right
    refused = 0
    for data in inputs_of(Random(SEED), right, seal_body, begin, head):
        try:
            decode(data)
        except CorruptionError:
            refused += 1
    assert refused > TRIES // 4


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
