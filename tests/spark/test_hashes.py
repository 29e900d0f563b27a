"""Hashes in Python against Spark's own, for every atomic type: one job."""

import datetime as dt
import decimal
import math

import pyarrow as pa
import pytest

from millpond.spark.shuffle.pack import with_key_hashes
from millpond.spark.shuffle.partitioner import partition_of, routing_keys
from millpond.state.types.key_groups import key_hash

pytestmark = pytest.mark.spark

DECIMALS = ["0", "-1", "1.5", "-128", "127", "128", "-32768.5", "9999999999.99"]
LONG_DECIMALS = [*DECIMALS, "-12345678901234567890123456.7891", "9" * 34 + ".9999", "-" + "9" * 34 + ".9999"]
COLUMNS = [
    ("tinyint", pa.int8(), [0, 1, -1, 127, -128]),
    ("smallint", pa.int16(), [0, 1, -1, (1 << 15) - 1, -(1 << 15)]),
    ("int", pa.int32(), [0, 1, -1, (1 << 31) - 1, -(1 << 31)]),
    ("bigint", pa.int64(), [0, 1, -1, (1 << 63) - 1, -(1 << 63)]),
    ("float", pa.float32(), [0.0, -0.0, 1.5, -1.5, math.nan, -math.nan, math.inf, -math.inf]),
    ("double", pa.float64(), [0.0, -0.0, 1.5, math.pi, math.nan, -math.nan, math.inf, -math.inf, 5e-324]),
    ("boolean", pa.bool_(), [True, False]),
    ("string", pa.string(), ["", "a", "abc", "Mühle 🌊", "x" * 31, "x" * 32, "x" * 100]),
    ("binary", pa.binary(), [b"", b"\x00", b"\xff" * 9, b"y" * 40]),
    ("date", pa.date32(), [dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (
        "timestamp",
        pa.timestamp("us", tz="UTC"),
        [
            dt.datetime(*at, tzinfo=dt.UTC)
            for at in ((1970, 1, 1), (1900, 1, 1, 1, 1, 1, 1), (2026, 11, 21, 1, 2, 3, 4))
        ],
    ),
    (
        "timestamp_ntz",
        pa.timestamp("us"),
        [dt.datetime(*at) for at in ((1970, 1, 1), (1900, 1, 1, 1, 1, 1, 1), (2026, 11, 21, 1, 2, 3, 4))],  # noqa: DTZ001
    ),
    ("interval day to second", pa.duration("us"), [dt.timedelta(0), dt.timedelta(-1, 5, 7), dt.timedelta(99)]),
    ("decimal(18,2)", pa.decimal128(18, 2), [decimal.Decimal(text) for text in DECIMALS]),
    ("decimal(38,4)", pa.decimal128(38, 4), [decimal.Decimal(text) for text in LONG_DECIMALS]),
]


def test_key_hashes_and_routing_keys_are_sparks_own(spark):
    from pyspark.sql import functions as F

    rows = max(len(values) for _, _, values in COLUMNS) + 1
    columns = [pa.array([*values, *[None] * (rows - len(values))], type=kind) for _, kind, values in COLUMNS]
    names = [f"c{at}" for at in range(len(COLUMNS))]
    numbers = [*routing_keys(7), *routing_keys(200), (1 << 31) - 1]
    anchored = pa.array(numbers[:rows] + [0] * max(0, rows - len(numbers)), type=pa.int32())
    declared = ", ".join(f"{name} {ddl}" for name, (ddl, _, _) in zip(names, COLUMNS, strict=True))
    table = pa.table([*columns, anchored], names=[*names, "routing_key"])
    df = spark.createDataFrame(table, f"{declared}, routing_key int").coalesce(1)
    hashed = df.select(
        *(F.xxhash64(name).alias(name) for name in names),
        F.xxhash64(*names).alias("all"),
        F.xxhash64(*reversed(names)).alias("backwards"),
        F.col("routing_key"),
        F.expr("pmod(hash(routing_key), 7)").alias("of_7"),
        F.expr("pmod(hash(routing_key), 200)").alias("of_200"),
    ).toArrow()
    arrow_kinds = [kind for _, kind, _ in COLUMNS]
    values = [[*values, *[None] * (rows - len(values))] for _, _, values in COLUMNS]

    def signed(key, of):
        value = key_hash(key, of)
        return value - (1 << 64) if value >> 63 else value

    for name, kind, column in zip(names, arrow_kinds, values, strict=True):
        assert hashed[name].to_pylist() == [signed((value,), [kind]) for value in column], kind
    keys = list(zip(*values, strict=True))
    assert hashed["all"].to_pylist() == [signed(key, arrow_kinds) for key in keys]
    assert hashed["backwards"].to_pylist() == [signed(key[::-1], arrow_kinds[::-1]) for key in keys]
    for positions, name in ((range(len(COLUMNS)), "all"), (reversed(range(len(COLUMNS))), "backwards")):
        (made,) = with_key_hashes(table.to_batches(), list(positions))
        assert made.column(made.num_columns - 1).to_pylist() == hashed[name].to_pylist()
    for name, partitions in (("of_7", 7), ("of_200", 200)):
        expected = [partition_of(routing_key, partitions) for routing_key in hashed["routing_key"].to_pylist()]
        assert hashed[name].to_pylist() == expected
