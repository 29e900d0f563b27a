"""Logged answers: the fetcher's answers, read back beside the queries that they belong to.

Place on the data path: between the fetcher's log and its two readers, the training set and the check.

The log has one row for each sampled answer: the name of its target, the key columns, ``time_ms``, ``context_*``, the
features, ``batch_end_ms``, and ``unavailable``, the features whose null means "not known"; `logged_columns` says what
they are called. An answer belongs to the queries of the same keys, context and time.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millpond.errors import DataError
from millpond.features import Field, Join
from millpond.features.logged_columns import CONTEXT_PREFIX, logged_column
from millpond.spark.features.columns import checked_column, comparable, quoted
from millpond.spark.features.join_columns import join_types, query_time

ANSWER = "logged answer"
"""The features of an answer, packed into one column. These names are those of no key, context field or feature."""

ANSWERED_AT = "time of the answer"
"""The query time of an answer, in milliseconds."""

UNKNOWN_FEATURES = "features not known"
"""The features of an answer that were not known, an array of their names."""

_QUESTION = "keys, context and time"

_NAME = "name"
_TIME = "time_ms"
_UNAVAILABLE = "unavailable"


def answers_of(logged: DataFrame, join: Join) -> DataFrame:
    """Return the logged answers of a Join: its keys, its context fields, `ANSWERED_AT`, `ANSWER`, `UNKNOWN_FEATURES`.

    Raises:
        DataError: a column is missing or of a wrong type.
    """
    whose = f"logged answers of {join.name!r}"
    if _NAME in logged.columns:
        logged = logged.where(F.col(_NAME) == join.name)
    columns = [
        checked_column(logged, Field(logged_column("key", field.name), field.type), "key", whose).alias(field.name)
        for field in join.keys
    ]
    columns += [
        checked_column(logged, Field(CONTEXT_PREFIX + field.name, field.type), "context", whose).alias(field.name)
        for field in join.context
    ]
    features = [
        checked_column(logged, Field(logged_column("feature", name), type_), "feature", whose).alias(name)
        for name, type_ in join_types(join).items()
    ]
    return logged.select(
        *columns,
        query_time(logged, _TIME, whose).alias(ANSWERED_AT),
        F.struct(*features).alias(ANSWER),
        _unavailable(logged).alias(UNKNOWN_FEATURES),
    )


def split_by_answers(
    queries: DataFrame, logged: DataFrame, join: Join, time_column: str
) -> tuple[DataFrame, DataFrame]:
    """Return the queries that have a logged answer, followed by its features, and the queries that have none.

    An answer with an unavailable feature does not count. Of several answers to one query, one is taken.

    Raises:
        DataError: a column is missing or of a wrong type.
    """
    features = list(join_types(join))
    answers = answers_of(logged, join).where(F.size(F.col(quoted(UNKNOWN_FEATURES))) == 0)
    asked = [
        *(
            comparable(F.col(quoted(field.name)), field.parsed).alias(field.name)
            for field in (*join.keys, *join.context)
        ),
        F.col(quoted(ANSWERED_AT)),
    ]
    # Of several answers to one query the one whose JSON sorts first: any would do, but always the same.
    values = F.col(quoted(ANSWER))
    answers = answers.groupBy(F.struct(*asked).alias(_QUESTION)).agg(F.min_by(values, F.to_json(values)).alias(ANSWER))
    whose = f"Join {join.name!r}"
    fields = [
        *(
            comparable(checked_column(queries, field, "key", whose), field.parsed).alias(field.name)
            for field in (*join.keys, *join.context)
        ),
        query_time(queries, time_column, whose).alias(ANSWERED_AT),
    ]
    rows = queries.withColumn(_QUESTION, F.struct(*fields))
    same = rows[quoted(_QUESTION)].eqNullSafe(answers[quoted(_QUESTION)])
    matched = rows.join(answers, same, "left")
    own = [F.col(quoted(name)) for name in queries.columns]
    served = matched.where(F.col(quoted(ANSWER)).isNotNull()).select(
        *own, *(F.col(quoted(ANSWER)).getField(name).alias(name) for name in features)
    )
    return served, matched.where(F.col(quoted(ANSWER)).isNull()).select(*own)


def _unavailable(logged: DataFrame) -> Column:
    found = dict(logged.dtypes).get(_UNAVAILABLE)
    if found is None:
        return F.array().cast("array<string>")
    if found != "array<string>":
        raise DataError(f"logged answers: column {_UNAVAILABLE!r} must be of type array<string>, got {found}")
    return F.coalesce(F.col(_UNAVAILABLE), F.array().cast("array<string>"))
