"""Logged answers: the fetcher's answers, read back beside the queries that they belong to.

Place on the data path: between the fetcher's log and its two readers, the training set and the check.

The log has one row for each sampled answer: the name of its target, the key columns, ``time_ms``, ``context_*``, the
features, ``batch_end_ms``, and ``unavailable``, the features whose null means "not known". An answer belongs to the
queries of the same keys, context and time.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millpond.errors import DataError
from millpond.features import Field, Join
from millpond.spark.features.columns import checked_column, quoted
from millpond.spark.features.join_columns import join_types, query_time

NAME = "name"
TIME = "time_ms"
CONTEXT_PREFIX = "context_"
UNAVAILABLE = "unavailable"

_ANSWER = "logged answer"


def answers_of(logged: DataFrame, join: Join) -> DataFrame:
    """Return the logged answers of a Join: its keys, its context fields, ``time_ms``, its features, ``unavailable``.

    Raises:
        DataError: a column is missing or of a wrong type.
    """
    whose = f"logged answers of {join.name!r}"
    if NAME in logged.columns:
        logged = logged.where(F.col(NAME) == join.name)
    columns = [checked_column(logged, field, "key", whose).alias(field.name) for field in join.keys]
    columns += [
        checked_column(logged, Field(CONTEXT_PREFIX + field.name, field.type), "context", whose).alias(field.name)
        for field in join.context
    ]
    columns.append(query_time(logged, TIME, whose).alias(TIME))
    columns += [
        checked_column(logged, Field(name, type_), "feature", whose).alias(name)
        for name, type_ in join_types(join).items()
    ]
    return logged.select(*columns, _unavailable(logged).alias(UNAVAILABLE))


def split_by_answers(
    queries: DataFrame, logged: DataFrame, join: Join, time_column: str
) -> tuple[DataFrame, DataFrame]:
    """Return the queries that have a logged answer, followed by its features, and the queries that have none.

    An answer with an unavailable feature does not count. Of several answers to one query, one is taken.

    Raises:
        DataError: a column is missing or of a wrong type.
    """
    features = list(join_types(join))
    names = [field.name for field in (*join.keys, *join.context)]
    answers = answers_of(logged, join).where(F.size(UNAVAILABLE) == 0).drop(UNAVAILABLE)
    asked = [F.col(quoted(name)) for name in (*names, TIME)]
    # Of several answers to one query the one whose JSON sorts first: any would do, but always the same.
    values = F.struct(*(F.col(quoted(name)) for name in features))
    answers = answers.groupBy(F.struct(*asked).alias("question")).agg(
        F.min_by(values, F.to_json(values)).alias(_ANSWER)
    )
    whose = f"Join {join.name!r}"
    fields = [
        *(checked_column(queries, field, "key", whose).alias(field.name) for field in (*join.keys, *join.context)),
        query_time(queries, time_column, whose).alias(TIME),
    ]
    rows = queries.withColumn("question", F.struct(*fields))
    same = rows["question"].eqNullSafe(answers["question"])
    matched = rows.join(answers, same, "left").drop("question")
    own = [F.col(quoted(name)) for name in queries.columns]
    served = matched.where(F.col(quoted(_ANSWER)).isNotNull()).select(
        *own, *(F.col(quoted(_ANSWER)).getField(name).alias(name) for name in features)
    )
    return served, matched.where(F.col(quoted(_ANSWER)).isNull()).select(*own)


def _unavailable(logged: DataFrame) -> Column:
    found = dict(logged.dtypes).get(UNAVAILABLE)
    if found is None:
        return F.array().cast("array<string>")
    if found != "array<string>":
        raise DataError(f"logged answers: column {UNAVAILABLE!r} must be of type array<string>, got {found}")
    return F.coalesce(F.col(UNAVAILABLE), F.array().cast("array<string>"))
