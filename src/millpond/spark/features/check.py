"""The check: compares answers that a fetcher gave and logged with the training set at the same times.

Place on the data path: after serving. It shows whether a model is served what it was trained on.

Each feature of each answer falls into one class:

- ``equal``: equal to the bit;
- ``arrived later``: it differs, but is equal if events count only from their arrival on. The fetcher could not know
  the later events. Only sources with an arrival time have this class;
- ``different``: it differs otherwise. This is a fault, or a source that was changed after the answer;
- ``unavailable``: the fetcher reported the feature as unknown, so there is nothing to compare.

Sketches may differ within their bound, since they were merged in another order. They are marked as not exact, and so
are derivations that read them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, get_args

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millpond.features import CompiledDerivations, GroupBy, Join, compile_group_by
from millpond.features.definitions.feature_types import derivation_columns, feature_types
from millpond.features.types import DataType, parse_type
from millpond.spark.features.columns import comparable, quoted
from millpond.spark.features.join_columns import as_join, join_types
from millpond.spark.features.logged_answers import ANSWER, ANSWERED_AT, UNKNOWN_FEATURES, answers_of
from millpond.spark.features.sources import Arrivals, Tables, knows_arrivals
from millpond.spark.features.training_set import features_as_of

EQUAL, ARRIVED_LATER, DIFFERENT, NOT_KNOWN = "equal", "arrived later", "different", "unavailable"

_COMPUTED, _CLASSES = "computed answer", "class of each feature"


@dataclass(frozen=True, slots=True)
class Example:
    """One answer of one feature.

    Args:
        feature: the name of the feature.
        kind: the class of the answer.
        question: the keys and context fields, as JSON.
        time_ms: the query time.
        logged: the fetcher's value, as JSON.
        computed: the training set's value, as JSON.
    """

    feature: str
    kind: str
    question: str
    time_ms: int
    logged: str
    computed: str


@dataclass(frozen=True, slots=True)
class FeatureCheck:
    """The number of answers of a feature in each class.

    Args:
        exact: whether every way to compute the feature gives the same bits. Sketches, and what is derived from them,
            are not exact.
        equal: answers equal to the training set.
        arrived_later: answers that differ because of events that arrived after the answer.
        different: answers that differ otherwise.
        unavailable: answers that were not known when they were given.
    """

    exact: bool
    equal: int
    arrived_later: int
    different: int
    unavailable: int


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of the check.

    Args:
        answers: the number of logged answers compared.
        features: the counts of each feature.
        examples: a few answers of each feature and class.
        rows: every answer of every feature with its class, in the columns of `Example`. They are computed again
            when they are read.
    """

    answers: int
    features: Mapping[str, FeatureCheck]
    examples: tuple[Example, ...]
    rows: DataFrame

    @property
    def agrees(self) -> bool:
        """Whether no exact feature differs for another reason than late events."""
        return not any(found.different for found in self.features.values() if found.exact)


def check(
    logged: DataFrame,
    target: Join | GroupBy,
    *,
    tables: Tables | None = None,
    snapshots_end_ms: int | None = None,
    examples: int = 3,
) -> CheckResult:
    """Compare logged answers with the training set at the same times.

    Args:
        logged: the fetcher's log; rows of other targets are ignored.
        target: the Join or GroupBy that was asked.
        tables: as for `training_set`.
        snapshots_end_ms: as for `training_set`.
        examples: the number of example answers for each feature and class.

    Raises:
        DataError: the log lacks a column of the target, or a source lacks a column or has one of a wrong type.

    Example::

        found = check(spark.read.parquet("answers"), flight_join)
        assert found.agrees, found.examples
    """
    join = as_join(target)
    types = {name: parse_type(type_) for name, type_ in join_types(join).items()}

    def compared(answers: DataFrame, kinds: Callable[[str, Column], Column], arrivals: Arrivals | None) -> DataFrame:
        computed = features_as_of(answers, join, ANSWERED_AT, tables, snapshots_end_ms, arrivals)
        classes = [kinds(name, _equal(name, type_)).alias(name) for name, type_ in types.items()]
        own = [F.col(quoted(name)) for name in answers.columns if name != _CLASSES]
        if arrivals is None:
            values = F.to_json(F.struct(*(F.col(quoted(name)) for name in types)))
            return computed.select(*own, values.alias(_COMPUTED), F.struct(*classes).alias(_CLASSES))
        return computed.select(*own, F.struct(*classes).alias(_CLASSES))

    kept = [compared(answers_of(logged, join), _first_class, None).persist()]
    try:
        if any(knows_arrivals(part.group_by) for part in join.parts):
            for arrivals in get_args(Arrivals):
                found = kept[-1]
                differs = reduce(Column.__or__, [F.col(_CLASSES).getField(name) == DIFFERENT for name in types])
                again = compared(found.where(differs), _second_class, arrivals)
                kept.append(found.where(~differs).unionByName(again).persist())
        return _result(kept[-1], join, types, examples)
    finally:
        for rows in kept:
            rows.unpersist()


def _first_class(name: str, equal: Column) -> Column:
    return F.when(F.array_contains(quoted(UNKNOWN_FEATURES), name), NOT_KNOWN).when(equal, EQUAL).otherwise(DIFFERENT)


def _second_class(name: str, equal: Column) -> Column:
    """Return the class of a feature that may have differed because of late events."""
    former = F.col(_CLASSES).getField(name)
    return F.when((former == DIFFERENT) & equal, ARRIVED_LATER).otherwise(former)


def _equal(name: str, type_: DataType) -> Column:
    logged, computed = F.col(quoted(ANSWER)).getField(name), F.col(quoted(name))
    return comparable(logged, type_).eqNullSafe(comparable(computed, type_))


def _result(found: DataFrame, join: Join, types: Mapping[str, DataType], examples: int) -> CheckResult:
    counted = found.agg(
        F.count(F.lit(1)).alias("answers"),
        *(
            F.count_if(F.col(_CLASSES).getField(name) == kind).alias(f"{number} {kind}")
            for number, name in enumerate(types)
            for kind in (EQUAL, ARRIVED_LATER, DIFFERENT, NOT_KNOWN)
        ),
    ).first()
    assert counted is not None  # noqa: S101 - an aggregate without groups has one row
    rows = _long(found, join, types)
    shown = _few(rows, examples).collect() if examples else []
    exact = _exact_features(join)
    features = {
        name: FeatureCheck(
            exact.get(name, True),
            *(int(counted[f"{number} {kind}"]) for kind in (EQUAL, ARRIVED_LATER, DIFFERENT, NOT_KNOWN)),
        )
        for number, name in enumerate(types)
    }
    return CheckResult(int(counted["answers"]), features, tuple(_example(row) for row in shown), rows)


def _long(found: DataFrame, join: Join, types: Mapping[str, DataType]) -> DataFrame:
    """Return one row for each feature of each answer."""
    question = F.to_json(F.struct(*(F.col(quoted(field.name)) for field in (*join.keys, *join.context))))

    def text(column: Column, name: str) -> Column:
        return F.coalesce(F.get_json_object(column, f"$['{name}']"), F.lit("null"))

    logged = F.to_json(F.col(quoted(ANSWER)))
    features = F.array(
        *(
            F.struct(
                F.lit(name).alias("feature"),
                F.col(_CLASSES).getField(name).alias("kind"),
                text(logged, name).alias("logged"),
                text(F.col(quoted(_COMPUTED)), name).alias("computed"),
            )
            for name in types
        )
    )
    return found.select(
        question.alias("question"), F.col(quoted(ANSWERED_AT)).alias("time_ms"), F.inline(features)
    ).select("feature", "kind", "question", "time_ms", "logged", "computed")


def _few(rows: DataFrame, examples: int) -> DataFrame:
    of_class = Window.partitionBy("feature", "kind").orderBy("time_ms", "question", "logged", "computed")
    numbered = rows.withColumn("number", F.row_number().over(of_class)).where(F.col("number") <= examples)
    return numbered.drop("number").orderBy("feature", "kind", "time_ms", "question")


def _example(row: Any) -> Example:
    return Example(row.feature, row.kind, row.question, row.time_ms, row.logged, row.computed)


def _exact_features(join: Join) -> dict[str, bool]:
    """Return for each feature whether it is exact. A derivation is exact if all that it reads is."""
    exact: dict[str, bool] = {}
    for part in join.parts:
        group_by = part.group_by
        own = {feature.name: feature.exact for feature in compile_group_by(group_by).cells.features}
        keys = {field.name: field.type for field in group_by.keys}
        own |= _exact_derivations(CompiledDerivations(group_by.derivations, keys | feature_types(group_by)), own)
        exact |= {part.renamed(name): is_exact for name, is_exact in own.items()}
    return exact | _exact_derivations(CompiledDerivations(join.derivations, derivation_columns(join)), exact)


def _exact_derivations(derived: CompiledDerivations, exact: Mapping[str, bool]) -> dict[str, bool]:
    return {name: all(exact.get(column, True) for column in columns) for name, columns in derived.inputs.items()}
