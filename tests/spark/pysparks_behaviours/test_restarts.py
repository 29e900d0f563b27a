"""What a query may change when it is started again, and that each of its operators goes on."""

import json

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.pysparks_behaviours.operators import Both, Counting, Operator, every_run_in, rows_of
from tests.spark.pysparks_output import OPERATORS

pytestmark = pytest.mark.spark


class Evolving(Both):
    """Remembers, under the schema that it is given, what a key's first rows were."""

    def __init__(self, schema):
        self.schema = schema

    def init(self, handle):
        super().init(handle)
        self.kept = handle.getValueState("kept", self.schema)

    def handleInputRows(self, key, rows, timerValues):
        before = self.kept.get()
        if before is None:
            self.kept.update((1, "one", 1.5))
        yield self.told(user=key[0], told=json.dumps(before))


@every_run_in("rows")
def test_a_schema_may_gain_lose_widen_and_reorder_fields_and_not_narrow_them(operator, stream, conf):
    conf(spark__sql__streaming__stateStore__encodingFormat="avro")

    def run(schema):
        stream.add([("ann", 1, 1.0)])
        return rows_of(stream.run(operator.of(stream.frame(), Evolving(schema), "user")))

    assert run("n int, word string, dropped double") == [[("ann", "null")]]
    assert run("word string, n long, added boolean") == [[("ann", '["one", 1, null]')]]
    with pytest.raises(Exception, match=r"(?i)SCHEMA_EVOLUTION|cannot become int32 without loss"):
        run("word string, n int, added boolean")


@pytest.mark.parametrize("by", OPERATORS)
def test_a_state_whose_field_must_not_be_null_is_refused_by_pyspark_and_taken_by_us(stream, conf, by):
    conf(spark__sql__streaming__stateStore__encodingFormat="avro")
    stream.add([("ann", 1, 1.0)])
    output = "n int not null, word string not null, x double not null"
    if by == "pyspark":
        with pytest.raises(StreamingQueryException, match="SCHEMA_MUST_BE_NULLABLE"):
            stream.run(Operator(by, "rows").of(stream.frame(), Evolving(output), "user"))
    else:
        assert rows_of(stream.run(Operator(by, "rows").of(stream.frame(), Evolving(output), "user"))) == [
            [("ann", "null")]
        ]


@every_run_in("pandas")
def test_a_query_with_two_operators_goes_on_with_both_after_a_restart(operator, stream, conf):
    conf(spark__sql__shuffle__partitions="1" if operator.form == "pandas" else "2")

    def counted_twice():
        once = operator.of(stream.frame(), Counting(), "user")
        return operator.of(once.selectExpr("substr(user, 1, 1) AS user", "told"), Counting(), "user")

    stream.add([("ann", 1, 1.0), ("amy", 2, 1.0), ("bob", 3, 1.0)])
    assert rows_of(stream.run(counted_twice())) == [[("a", "2 of 2"), ("b", "1 of 1")]]
    stream.add([("ann", 4, 1.0)])
    assert rows_of(stream.run(counted_twice())) == [[("a", "1 of 3")]]
