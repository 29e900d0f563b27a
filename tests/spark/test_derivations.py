"""Derivations in Python and in Spark: the same values, the same types."""

import math
from random import Random

import pyarrow as pa
import pytest

from millpond.errors import OptionError
from millpond.features.derivations import CompiledDerivations, Derivation
from tests.features.derivations.known_values import FAILING, KNOWN
from tests.features.derivations.random_expressions import COLUMNS, Expressions, random_row

pytestmark = pytest.mark.spark

ROWS = 150
SEED = 20

_ARROW = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,18)": pa.decimal128(38, 18),
    "decimal(5,0)": pa.decimal128(5, 0),
    "array<int>": pa.list_(pa.int32()),
    "array<double>": pa.list_(pa.float64()),
    "map<string,double>": pa.map_(pa.string(), pa.float64()),
    "map<int,string>": pa.map_(pa.int32(), pa.string()),
}


@pytest.fixture(scope="module")
def rows():
    random = Random(SEED)
    return [random_row(random) for _ in range(ROWS)]


@pytest.fixture
def utc(spark):
    """The session in UTC, as derivations ask for; afterwards as it was."""
    settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.subexpressionElimination.enabled": "false"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def table(rows, **more):
    columns = {
        name: pa.array([None if row[name] is None else _stored(row[name]) for row in rows], _ARROW[type_])
        for name, type_ in COLUMNS.items()
    }
    return pa.table(columns | more)


def _stored(value):
    return list(value.items()) if isinstance(value, dict) else value


def compiled(count, draw):
    """`count` drawn expressions that the subset takes. A refusal of a draw is a common type that does not exist."""
    made, refused = [], 0
    while len(made) < count:
        text = draw()
        try:
            CompiledDerivations([Derivation("v", text)], COLUMNS)
        except OptionError:
            refused += 1
            continue
        made.append(Derivation(f"v{len(made)}", text))
    assert refused < count
    return CompiledDerivations(made, COLUMNS)


def same(mine, spark, *, digits=None):
    if isinstance(mine, float) and isinstance(spark, float):
        if math.isnan(mine) or math.isnan(spark):
            return math.isnan(mine) and math.isnan(spark)
        if digits is not None:
            return mine == spark or math.isclose(mine, spark, rel_tol=digits)
        return mine == spark and math.copysign(1, mine) == math.copysign(1, spark)
    if isinstance(mine, list) and isinstance(spark, list):
        return len(mine) == len(spark) and all(same(*pair) for pair in zip(mine, spark, strict=True))
    return type(mine) is type(spark) and mine == spark and str(mine) == str(spark)


def differences(derivations, mine, found, rows, **how):
    texts = {it.name: it.expression for it in derivations.derivations}
    return [
        (texts[name], {key: row[key] for key in derivations.inputs[name]}, mine[at][name], found[name][at])
        for name in texts
        for at, row in enumerate(rows)
        if not same(mine[at][name], found[name][at], **how)
    ]


def by_spark(utc, derivations, rows):
    """The values of the text for Spark, and their types."""
    chosen = [f"{sql} AS `{name}`" for name, sql in derivations.spark_expressions()]
    frame = utc.createDataFrame(table(rows)).selectExpr(*chosen)
    names = {"bigint": "long"}
    types = {field.name: names.get(it := field.dataType.simpleString(), it) for field in frame.schema}
    return frame.toArrow().to_pydict(), types


def test_known_values_are_those_of_spark(utc):
    """Of the expression as it is written, and of the text for Spark."""
    derivations = CompiledDerivations([Derivation(f"v{at}", text) for at, (text, _) in enumerate(KNOWN)], {})
    written = utc.range(1).selectExpr(*(f"{it.expression} AS {it.name}" for it in derivations.derivations)).toArrow()
    made = utc.range(1).selectExpr(*(f"{sql} AS {name}" for name, sql in derivations.spark_expressions())).toArrow()
    mine = [dict(zip(derivations.result_types, (value for _, value in KNOWN), strict=True))]
    assert differences(derivations, mine, written.to_pydict(), [{}]) == []
    assert differences(derivations, mine, made.to_pydict(), [{}]) == []


def test_what_fails_is_null_on_spark(utc):
    derivations = CompiledDerivations([Derivation(f"v{at}", text) for at, (text, _) in enumerate(FAILING)], {})
    made = utc.range(1).selectExpr(*(f"{sql} AS {name}" for name, sql in derivations.spark_expressions())).toArrow()
    assert set(made.to_pylist()[0].values()) == {None}


def test_a_derivation_uses_an_earlier_one_in_one_select(utc):
    derivations = CompiledDerivations([Derivation("b", "c * 2"), Derivation("c", "i + 1")], {"i": "int"})
    chosen = ["*", *(f"{sql} AS `{name}`" for name, sql in derivations.spark_expressions())]
    found = utc.createDataFrame([(4,)], "i int").selectExpr(*chosen).toArrow().to_pylist()
    assert found == [{"i": 4, **derivations.apply({"i": 4})[0]}]


def test_random_expressions_have_the_same_values_and_types_on_spark(utc, rows):
    expressions = Expressions(Random(SEED))
    derivations = compiled(150, lambda: expressions.any(3))
    mine = [derivations.apply(row)[0] for row in rows]
    found, types = by_spark(utc, derivations, rows)
    assert differences(derivations, mine, found, rows) == []
    assert types == derivations.result_types


def test_random_expressions_have_the_same_values_as_their_own_text_on_spark(utc, rows):
    """Where nothing fails; a failure ends Spark's query, so rows in which one happens are left to null."""
    expressions = Expressions(Random(SEED + 1))
    derivations = compiled(150, lambda: expressions.any(3))
    mine = [dict(zip(derivations.result_types, values, strict=True)) for values in failing_null(derivations, rows)]
    sound = {
        f"ok_{name}": pa.array([mine[at][name] is not _FAILED for at in range(len(rows))])
        for name in derivations.result_types
    }
    chosen = [f"IF(ok_{it.name}, {it.expression}, NULL) AS {it.name}" for it in derivations.derivations]
    found = utc.createDataFrame(table(rows, **sound)).selectExpr(*chosen).toArrow().to_pydict()
    mine = [{name: None if value is _FAILED else value for name, value in row.items()} for row in mine]
    assert differences(derivations, mine, found, rows) == []


_FAILED = object()


def failing_null(derivations, rows):
    """The values of each row, `_FAILED` where any operation failed, even one whose null was caught."""
    lines = derivations.source.replace(" is None and why is not None:", " is None or why is not None:")
    # A reason is kept for every failure: what is null without one gets the reason None.
    namespace = dict(derivations._apply.__globals__)
    exec(compile(lines, "<derivations>", "exec"), namespace)  # noqa: S102 - the source under test
    for row in rows:
        values, reasons = namespace["derive"](row)
        yield [_FAILED if reasons.get(name) is not None else value for name, value in values.items()]


def test_random_transcendental_functions_agree_to_the_last_digits(utc, rows):
    expressions = Expressions(Random(SEED + 2))
    derivations = compiled(40, lambda: expressions.transcendental(1))
    mine = [derivations.apply(row)[0] for row in rows]
    found, _ = by_spark(utc, derivations, rows)
    assert differences(derivations, mine, found, rows, digits=1e-15) == []
