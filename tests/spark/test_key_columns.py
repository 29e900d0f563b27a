"""Keys are found by Spark's own rules, are what PySpark hands to a processor, and are refused by name."""

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from millpond import DataError
from millpond.spark import keyed
from millpond.spark.operator.key_columns import key_columns

pytestmark = pytest.mark.spark

EVERY_TYPE = """
    true AS flag, 1Y AS tiny, 2S AS small, 3 AS middle, 4L AS big, cast(1.5 AS float) AS single, 2.5D AS number,
    cast(1.25 AS decimal(5, 2)) AS price, 'x' AS text, X'6162' AS data, date'2020-01-02' AS day,
    timestamp'2020-01-02 03:04:05.000006' AS at, timestamp_ntz'2020-01-02 03:04:05' AS wall,
    interval '1 02:03:04' day to second AS took, cast('abc' AS varchar(5)) AS short, null AS nothing
"""


class Keys(StatefulProcessor):
    """Tells each key as it got it, how often it has seen it, and its rows."""

    def init(self, handle):
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key, rows, timerValues):
        rows = list(rows)
        before = self._seen.get()
        self._seen.update(((before[0] if before else 0) + len(rows),))
        yield Row(key=repr(key), n=self._seen.get()[0], rows=repr(rows))

    def close(self):
        pass


def _keys(grouped):
    rows = grouped.transformWithState(Keys(), "key string, n long, rows string", "Update", "None").collect()
    return sorted((row.key, row.n, row.rows) for row in rows)


def test_several_keys_of_every_type_are_those_of_pyspark_nulls_too(spark):
    data = spark.sql(f"SELECT {EVERY_TYPE}, 7 AS id")
    names = data.columns[:-1]
    nulls = data.select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in data.schema))
    data = data.unionAll(nulls).unionAll(nulls)
    millpond = _keys(keyed(data, *names))
    assert millpond == _keys(data.groupBy(*names))
    assert [n for _, n, _ in millpond] == [2, 1]


def test_every_nan_is_one_key_and_so_are_the_zeros(spark):
    """PySpark's own row form takes NaN for a new key with every row; Spark groups it as one."""
    data = spark.sql("SELECT explode(array(double('NaN'), 0.0D, double('NaN'), -0.0D, null, null)) AS k")
    assert [(key, n) for key, n, _ in _keys(keyed(data, "k"))] == [("(0.0,)", 2), ("(None,)", 2), ("(nan,)", 2)]


def test_names_are_found_by_sparks_rules(spark):
    data = spark.createDataFrame([("ann", 1, ("x",), 2)], "user string, `a.b` int, part struct<c: string>, `d``e` int")

    def key(*names):
        return _keys(keyed(data, *names))[0][0]

    assert key("USER") == "('ann',)"
    assert key("`a.b`", "user") == "(1, 'ann')"
    assert key("`d``e`") == "(2,)"
    assert key("part.c") == "('x',)"
    assert key(F.col("user"), F.upper("user")) == "('ann', 'ANN')"
    assert key("user", "user") == "('ann', 'ann')"


def test_a_computed_key_is_hidden_from_rows(spark):
    data = spark.createDataFrame([("ann", 5)], "user string, n long")
    ((key, _, rows),) = _keys(keyed(data, (F.col("n") % 3).alias("part")))
    assert (key, rows) == ("(2,)", "[Row(user='ann', n=5)]")
    assert key_columns(data, ["n", F.lower("user")]).schema.names == ["n", "lower(user)"]


def test_columns_of_the_same_name_do_no_harm_unless_they_are_the_key(spark):
    data = spark.createDataFrame([("ann", 1, 2)], "user string, n int, m int").toDF("user", "n", "n")
    ((_, _, rows),) = _keys(keyed(data, "user"))
    assert rows == "[Row(user='ann', n=1, n=2)]"
    with pytest.raises(DataError, match=r"'n' is ambiguous: the DataFrame has the columns \['n', 'n'\]"):
        keyed(data, "n")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("interval '1-2' year to month", "'k' is interval year to month; keys are atomic"),
        ("make_interval(1, 2, 3)", "'k' is interval; keys are atomic"),
        ("parse_json('1')", "'k' is variant; keys are atomic"),
        ("array(1)", "'k' is array<int>; keys are atomic"),
        ("map('a', 1)", "'k' is map<string,int>; keys are atomic"),
        ("named_struct('a', 1)", "'k' is struct<a:int>; keys are atomic"),
        ("'x' COLLATE UTF8_LCASE", "'k' has the collation UTF8_LCASE"),
    ],
)
def test_what_cannot_be_a_key_is_refused_by_name(spark, kind, says):
    with pytest.raises(DataError, match=says):
        key_columns(spark.sql(f"SELECT {kind} AS k"), ["k"])


def test_a_key_that_is_not_there_is_refused_with_a_hint(spark):
    data = spark.createDataFrame([(1,)], "`a.b` int")
    with pytest.raises(DataError, match=r"'c' is not in the DataFrame.* its columns are \['a.b'\]"):
        key_columns(data, ["c"])
    with pytest.raises(DataError, match=r"'a.b' is not in .* is written '`a.b`'"):
        key_columns(data, ["a.b"])
    with pytest.raises(DataError, match=r"nowhere.* is not in the DataFrame"):
        key_columns(data, [F.col("nowhere") + 1])
    with pytest.raises(DataError, match="'current_date' is not in the DataFrame"):
        key_columns(data, ["current_date"])
    with pytest.raises(DataError, match="a key is int 7"):
        key_columns(data, [7])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (("usr",), r"'usr' is not in the DataFrame; its columns are \['user', 'tags'\]; did you mean 'user'\?"),
        (("user", "tags"), "'tags' is array<int>; keys are atomic"),
        ((7,), "a key is int 7"),
    ],
)
def test_keyed_itself_refuses_a_key_that_cannot_be_one_and_names_the_nearest_column(spark, keys, says):
    data = spark.sql("SELECT 'ann' AS user, array(1) AS tags")
    with pytest.raises(DataError, match=says):
        keyed(data, *keys)
