"""The check: answers that a fetcher gave and logged, against the training set at the same times.

Place on the data path: after serving. It tells whether a model is served what it was trained on.

Each feature of each answer falls into one class:

- ``equal``: to the bit;
- ``arrived later``: it differs, and is equal once events count only from their arrival on. The fetcher
  could not know them. Told apart only where a source has an arrival time;
- ``different``: otherwise. This is a fault, or a source that was changed after the answer;
- ``unavailable``: the fetcher said that it did not know, so there is nothing to compare.

Sketches may differ within their bound, since they were merged in another order; they are marked, and so are
derivations that read them.
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
from millpond.spark.features.columns import quoted
from millpond.spark.features.join_columns import as_join, join_types
from millpond.spark.features.logged_answers import TIME, UNAVAILABLE, answers_of
from millpond.spark.features.sources import Arrivals, Tables, knows_arrivals
from millpond.spark.features.training_set import features_as_of

EQUAL, ARRIVED_LATER, DIFFERENT, NOT_KNOWN = "equal", "arrived later", "different", "unavailable"

_LOGGED, _COMPUTED, _CLASSES = "logged answer", "computed answer", "class of each feature"


@dataclass(frozen=True, slots=True)
class Example:
    """One answer of one feature.

    Args:
        feature: its name.
        kind: its class.
        question: the keys and context fields, as JSON.
        time_ms: when it was asked for.
        logged: what the fetcher gave, as JSON.
        computed: what the training set says, as JSON.
    """

    feature: str
    kind: str
    question: str
    time_ms: int
    logged: str
    computed: str


@dataclass(frozen=True, slots=True)
class FeatureCheck:
    """How many answers of a feature fall into each class.

    Args:
        exact: whether the feature is equal to the bit however it was computed; sketches, and what is derived from
            them, are not.
        equal: as the training set says.
        arrived_later: differing because of events that arrived after the answer.
        different: differing otherwise.
        unavailable: not known when the answer was given.
    """

    exact: bool
    equal: int
    arrived_later: int
    different: int
    unavailable: int


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What the check found.

    Args:
        answers: how many logged answers were compared.
        features: the counts of each feature.
        examples: a few answers of each feature and class.
        rows: every answer of every feature with its class, in the columns of `Example`. Computed again
            when it is read.
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
        logged: the fetcher's log; rows of other targets are left out.
        target: the Join or GroupBy that was asked.
        tables: as for `training_set`.
        snapshots_end_ms: as for `training_set`.
        examples: how many answers of each feature and class are shown.

    Raises:
        DataError: the log lacks a column of the target, or a source does not fit.

    Example::

        found = check(spark.read.parquet("answers"), flight_join)
        assert found.agrees, found.examples
    """
    join = as_join(target)
    types = {name: parse_type(type_) for name, type_ in join_types(join).items()}

    def compared(answers: DataFrame, kinds: Callable[[str, Column], Column], arrivals: Arrivals | None) -> DataFrame:
        computed = features_as_of(answers, join, TIME, tables, snapshots_end_ms, arrivals)
        classes = [kinds(name, _equal(name, type_)).alias(name) for name, type_ in types.items()]
        own = [F.col(quoted(name)) for name in answers.columns if name != _CLASSES]
        if arrivals is None:
            values = F.to_json(F.struct(*(F.col(quoted(name)) for name in types)))
            return computed.select(*own, values.alias(_COMPUTED), F.struct(*classes).alias(_CLASSES))
        return computed.select(*own, F.struct(*classes).alias(_CLASSES))

    kept = [compared(_asked(logged, join, types), _first_class, None).persist()]
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


def _asked(logged: DataFrame, join: Join, types: Mapping[str, DataType]) -> DataFrame:
    """Give the logged answers as queries: keys, context and time, and all features packed into one column."""
    answers = answers_of(logged, join)
    names = [*(field.name for field in (*join.keys, *join.context)), TIME, UNAVAILABLE]
    features = F.struct(*(F.col(quoted(name)) for name in types)).alias(_LOGGED)
    return answers.select(*(F.col(quoted(name)) for name in names), features)


def _first_class(name: str, equal: Column) -> Column:
    return F.when(F.array_contains(UNAVAILABLE, name), NOT_KNOWN).when(equal, EQUAL).otherwise(DIFFERENT)


def _second_class(name: str, equal: Column) -> Column:
    """Tell of a feature that differed whether late events are why."""
    former = F.col(_CLASSES).getField(name)
    return F.when((former == DIFFERENT) & equal, ARRIVED_LATER).otherwise(former)


def _equal(name: str, type_: DataType) -> Column:
    logged, computed = F.col(quoted(_LOGGED)).getField(name), F.col(quoted(name))
    return _comparable(logged, type_).eqNullSafe(_comparable(computed, type_))


def _comparable(value: Column, type_: DataType) -> Column:
    """Give a value as Spark can compare it: maps as their sorted entries."""
    if type_.element is None:
        return value
    element = type_.element
    if type_.key is None:
        return value if element.element is None else F.transform(value, lambda one: _comparable(one, element))
    if element.element is not None:
        value = F.transform_values(value, lambda _, one: _comparable(one, element))
    return F.array_sort(F.map_entries(value))


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
    """Give one row for each feature of each answer."""
    question = F.to_json(F.struct(*(F.col(quoted(field.name)) for field in (*join.keys, *join.context))))

    def text(column: Column, name: str) -> Column:
        return F.coalesce(F.get_json_object(column, f"$['{name}']"), F.lit("null"))

    logged = F.to_json(F.col(quoted(_LOGGED)))
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
    return found.select(question.alias("question"), F.col(TIME).alias("time_ms"), F.inline(features)).select(
        "feature", "kind", "question", "time_ms", "logged", "computed"
    )


def _few(rows: DataFrame, examples: int) -> DataFrame:
    of_class = Window.partitionBy("feature", "kind").orderBy("time_ms", "question", "logged", "computed")
    numbered = rows.withColumn("number", F.row_number().over(of_class)).where(F.col("number") <= examples)
    return numbered.drop("number").orderBy("feature", "kind", "time_ms", "question")


def _example(row: Any) -> Example:
    return Example(row.feature, row.kind, row.question, row.time_ms, row.logged, row.computed)


def _exact_features(join: Join) -> dict[str, bool]:
    """Tell of each feature whether it is exact; a derivation is if all that it reads is."""
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
