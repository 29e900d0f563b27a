"""The columns of a Join: the query time, its features with their types, and a GroupBy as a Join.

Place on the data path: on the driver, while training set, spine and check are planned.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millpond.features import CompiledDerivations, Field, GroupBy, Join, JoinPart
from millpond.features.definitions.feature_types import derivation_columns, served_types
from millpond.spark.features.columns import checked_column, quoted


def as_join(target: Join | GroupBy) -> Join:
    """Return a Join as it is, and a GroupBy as a Join of its name, whose features keep their names."""
    return target if isinstance(target, Join) else Join(target.name, parts=(JoinPart(target, prefix=""),))


def query_time(queries: DataFrame, time_column: str, whose: str) -> Column:
    """Return the time of queries in milliseconds.

    Raises:
        DataError: there is no such column, or it is neither a whole number nor a timestamp.
    """
    found = dict(queries.dtypes).get(time_column)
    if found == "timestamp":
        return F.unix_millis(queries[quoted(time_column)])
    hint = "give milliseconds since the epoch, UTC, or a timestamp"
    return checked_column(queries, Field(time_column, "long"), "time column", whose, hint)


def join_types(join: Join) -> dict[str, str]:
    """Return the type of each feature of a Join, by name, in the order of the training set."""
    types = {part.renamed(name): type_ for part in join.parts for name, type_ in served_types(part.group_by).items()}
    if join.derivations:
        types |= CompiledDerivations(join.derivations, derivation_columns(join)).result_types
    return types
