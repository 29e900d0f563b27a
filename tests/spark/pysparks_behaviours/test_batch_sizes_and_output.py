"""In what pieces a key's rows come, and what the output may be made of."""

import json

import pandas as pd
import pytest
from pyspark.sql import Row

from millpond.spark.environment.versions import SPARK
from tests.spark.pysparks_behaviours.operators import Both, Counting, Operator, rows_of
from tests.spark.pysparks_output import OPERATORS

pytestmark = pytest.mark.spark

RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


class Sizes(Both):
    """How many rows each frame has; of an initial state, how many there were."""

    def init(self, handle):
        super().init(handle)
        self.before = handle.getValueState("before", "n long")

    def handleInitialState(self, key, initialState, timerValues):
        self.before.update(((self.before.get() or (0,))[0] + len(initialState),))

    def handleInputRows(self, key, rows, timerValues):
        before = self.before.get()
        yield self.told(user=key[0], told=f"{[len(frame) for frame in rows]} after {before and before[0]}")


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({RECORDS: "0"}, [4]),
        ({RECORDS: "-1"}, [4]),
        ({RECORDS: "3"}, [3, 1]),
        ({BYTES: "2"}, [1, 1, 1, 1]),
        ({RECORDS: "-1", BYTES: "64m"}, [4]),
    ],
)
@pytest.mark.parametrize("by", OPERATORS)
def test_frames_keep_to_the_limits_in_rows_and_in_bytes(spark, conf, by, limits, sizes):
    if by == "pyspark" and SPARK < (4, 2) and int(limits.get(RECORDS, 1)) <= 0:
        pytest.skip("PySpark 4.1 gives each row a frame of its own where there is no limit; later versions give one")
    conf(**{name.replace(".", "__"): value for name, value in limits.items()})
    df = spark.createDataFrame([("ann", n) for n in range(4)], "user string, id long").coalesce(1)
    initial = spark.createDataFrame([("ann", 7), ("ann", 8)], "user string, n long").groupBy("user")
    operator = Operator(by, "pandas")
    assert rows_of([operator.of(df, Sizes(), "user").collect()]) == [[("ann", f"{sizes} after None")]]
    told = [row.told for row in operator.of(df, Sizes(), "user", initial=initial).collect()]
    if sizes == [3, 1]:
        # Where the pieces end depends on how the rows of the initial state come; ours may come in two calls.
        assert sum(sum(json.loads(each.removesuffix(" after 2"))) for each in told) == 4
    else:
        assert told == [f"{sizes} after 2"]


@pytest.mark.parametrize("by", OPERATORS)
def test_rows_are_never_lost_however_small_the_batches_are(spark, conf, by):
    conf(**{RECORDS.replace(".", "__"): "1", BYTES.replace(".", "__"): "1"})
    df = spark.range(20).selectExpr("string(id % 2) AS user", "id")
    counted = Operator(by, "rows").of(df, Counting(), "user")
    assert rows_of([counted.collect()]) == [[("0", "10 of 10"), ("1", "10 of 10")]]


class Composite(Both):
    def handleInputRows(self, key, rows, timerValues):
        inner = {"n": 1, "scores": [1.5], "tags": {"a": "b"}}
        inner = Row(**inner) if self.form == "rows" else inner
        yield self.told(user=key[0], items=["i", "j"], pairs={"k": "v"}, inners=[inner], by_name={"x": inner})


def test_output_may_be_nested(operator, spark):
    inner = "struct<n: int, scores: array<double>, tags: map<string, string>>"
    output = "user string, items array<string>, pairs map<string, string>, "
    output += f"inners array<{inner}>, by_name map<string, {inner}>"
    df = spark.createDataFrame([("ann",)], "user string")
    one = Row(n=1, scores=[1.5], tags={"a": "b"})
    expected = Row(user="ann", items=["i", "j"], pairs={"k": "v"}, inners=[one], by_name={"x": one})
    assert operator.of(df, Composite(), "user", output=output).collect() == [expected]


class Costly(Both):
    def handleInputRows(self, key, rows, timerValues):
        yield pd.DataFrame({"user": [key[0]], "price": [12345]})


@pytest.mark.parametrize("by", OPERATORS)
def test_whole_numbers_become_decimals_only_where_the_session_allows_it(spark, conf, by):
    df = spark.createDataFrame([("ann",)], "user string")
    output = {"output": "user string, price decimal(10, 2)"}
    conf(spark__sql__execution__pythonUDF__pandas__intToDecimalCoercionEnabled="true")
    assert float(Operator(by, "pandas").of(df, Costly(), "user", **output).collect()[0].price) == 12345.0
    conf(spark__sql__execution__pythonUDF__pandas__intToDecimalCoercionEnabled="false")
    with pytest.raises(Exception, match=r"(?i)price|decimal"):
        Operator(by, "pandas").of(df, Costly(), "user", **output).collect()
