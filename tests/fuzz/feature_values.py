"""The decoders of what uploads and streams store: each with right bytes, and how a body of them is sealed."""

import zlib

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
from millpond.features.operations import OPERATIONS
from millpond.features.stored.format_1 import definition_hash
from millpond.features.stored.value_header import HEADER, with_header
from millpond.features.types import parse_type
from millpond.kv import Get, MemoryStore, Put
from millpond.spark.features.tiles import slots
from millpond.spark.features.tiles.leaves import ROOT_FORMAT_VERSION, decode_root, encode_root
from millpond.spark.features.tiles.slots import Block, decode_block, decode_markers, encode_block, encode_markers
from millpond.spark.features.upload_lease import LEASE_DATASET, UploadLease
from tests.features.oracle import DAY, MINUTE
from tests.features.test_codec import GOLDEN, golden_plan
from tests.features.values import FEW

B = 16_000 * DAY
PARAMETERS = {"k": {"k": 3}, "percentiles": {"percentiles": (0.5,)}, None: {}}


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
    return lambda body: with_header(version, body, address)


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
BLOCK = encode_block(WIDE.tile_codec, Block({KEY: WIDE.tile_codec.pack(COLLECTED)[1]}, {}, complete=True))
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
FEATURE_DECODERS = {
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
    "block of tiles": (
        lambda data: decode_block(WIDE.tile_codec, data),
        BLOCK,
        sealed(slots.FORMAT_VERSION, b""),
        HEADER.size,
        0,
    ),
    "markers of a slot": (decode_markers, encode_markers({KEY: 3}), sealed(slots.FORMAT_VERSION, b""), HEADER.size, 0),
    "root of a block": (
        decode_root,
        encode_root([0, 1_000, 2_000_000_000], complete=True),
        sealed(ROOT_FORMAT_VERSION, b""),
        HEADER.size,
        0,
    ),
    "upload lease": (lease, stored_lease(), sealed(1, b"route"), HEADER.size, 0),
}
