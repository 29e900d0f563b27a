"""Joins that are refused when they are planned, and what is said."""

import pyarrow as pa
import pytest

from millpond.errors import OptionError
from millpond.lookup import LookupTable, TableScan
from millpond.spark import lookup_join
from tests.spark.lookup_join.tables import FULL

pytestmark = pytest.mark.spark


def test_what_is_wrong_with_a_join_is_said_when_it_is_planned(spark):
    table = pa.table({"code": ["a"], "hour": [1], "gate": [2]})
    gates = LookupTable("gates", TableScan(table, ["code", "hour"]), FULL)
    events = spark.sql("select 'a' as code, 1 as hour, 2 as gate, 1.5D as ratio, true as flag")
    wrong = [
        ({"on": ["code", "minute"]}, r"no column 'minute'.*code, hour, gate"),
        ({"on": "code"}, r"each key column.*code, hour.*got code"),
        ({"on": ["code", "hour"]}, "gate would be there twice"),
        ({"on": ["code", "hour"], "columns": ["gait"], "prefix": "x_"}, "no column 'gait'"),
        ({"on": {"code": "code", "ratio": "hour"}, "prefix": "x_"}, r"'ratio' is double.*'hour'.*bigint"),
        ({"on": {"hour": "code", "flag": "hour"}, "prefix": "x_"}, r"'hour' is int.*'code'.*string"),
        ({"on": ["code", "hour"], "how": "outer", "prefix": "x_"}, "'left' or 'inner'"),
        (
            {"on": ["code", "hour"], "prefix": "x_", "share_cache": True},
            "share_cache: has an effect on a partial cache",
        ),
    ]
    for options, complaint in wrong:
        with pytest.raises(OptionError, match=complaint):
            lookup_join(events, gates, **options)
    gates.close()


def test_what_cannot_be_set_aside_is_refused(spark, planes):
    events = spark.createDataFrame([("N7",)], "tailnum string")
    table = LookupTable("planes", planes)
    with pytest.raises(OptionError, match="'fail' or 'dead-letter'"):
        lookup_join(events, table, on="tailnum", on_error="ignore")
    with pytest.raises(OptionError, match=r"on_error.*cached in full"):
        lookup_join(events, LookupTable("planes", planes, FULL), on="tailnum", on_error="dead-letter")
