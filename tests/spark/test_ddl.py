"""Spark's DDL text without a JVM: the same schema as Spark's own parser reads, or a refusal by place."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import _parse_datatype_string

from millpond.errors import OptionError
from millpond.spark.testing.ddl import parse_ddl

SAME = (
    "a int",
    "a: int, b: string",
    "a:int",
    "a\tint\n,b int",
    "`a b` long, `c``d` short",
    "a boolean, b binary, c date, d double, e void, f variant",
    "a real, b float, c byte, d tinyint, e smallint, f short, g long, h bigint, i integer",
    "a timestamp_ntz, b timestamp_ltz, c timestamp",
    "a decimal, b decimal(5), c dec(5,2), d numeric(38,38), e decimal(0,0)",
    "a time, b time(3)",
    "a char(3), b varchar(5), c character(2)",
    "a interval year to month, b interval month, c interval year",
    "a interval day to second, b interval day, c interval hour to minute, d interval second, e interval",
    "a array<int>, b map<string,array<long>>",
    "a array<array<map<int,struct<q:date>>>>",
    "a struct<x: int, y string>, b struct<>",
    "a struct < x : int >",
    "a struct<b: int, b: int>",
    "a INT NOT NULL, b Bigint",
    "a struct<x: int not null comment 'q'>",
    "a map<int,int> NOT NULL COMMENT 'x'",
    "a string comment 'x\\ny \\'z\\''",
    'a string comment "x"',
    "a int comment ''",
    "date date, timestamp timestamp, comment int comment 'x', interval int, not int, array array<int>, struct int",
    "_a int, a_1 string",
)

BOTH_REFUSE = (
    "a",
    "a int,",
    "a int b",
    "a int null",
    "a null",
    "a str",
    "a-b int",
    "a.b int",
    "$a int",
    "1 int",
    "ä int",
    "a char",
    "a array<int",
    "a array<int not null>",
    "a map<int>",
    "a decimal(39,0)",
    "a decimal(5,6)",
    "a decimal(10,-2)",
    "a decimal()",
    "a interval second to day",
    "a interval day to month",
    "a string comment",
    "a string comment 'a' not null",
    "a int default 3",
)

ONLY_WE_REFUSE = (
    "",
    "`` int",
    "int",
    "struct<a: int>",
    "1a int",
    "a int -- c",
    "a string collate UTF8_BINARY",
    "a geometry(4326)",
)


@pytest.mark.spark
def test_spark_reads_the_same_schema(spark):
    for text in SAME:
        assert parse_ddl(text).json() == _parse_datatype_string(text).json(), text
    assert [text for text in BOTH_REFUSE if _spark_reads(text)] == []


def _spark_reads(text):
    try:
        _parse_datatype_string(text)
    except (PySparkException, ArithmeticError):
        return False
    return True


@pytest.mark.parametrize("text", [*BOTH_REFUSE, *ONLY_WE_REFUSE])
def test_what_is_not_known_is_refused(text):
    with pytest.raises(OptionError, match="cannot be read: expected"):
        parse_ddl(text)


def test_a_refusal_names_the_place_and_what_was_expected():
    with pytest.raises(OptionError, match=r"expected a type, .* at character 5, got 'strng, at timestamp'"):
        parse_ddl("user strng, at timestamp")
    with pytest.raises(OptionError, match="expected '>' at character 17, got its end"):
        parse_ddl("amounts array<int")
