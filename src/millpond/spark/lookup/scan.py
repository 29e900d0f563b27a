"""A table that Spark knows as the source of a full cache: in the catalog (Hive's too), or any DataFrame.

Before a fully cached table. Every load is one Spark job that the driver asks for; its rows come to the
driver as Arrow, so the table must fit into the driver's memory, as a full cache must anyway
(`spark.driver.maxResultSize` bounds it too). The invariant: a load sees the table as it is then.
A name is looked up anew and a function called anew each time; a DataFrame is computed anew, but of the
files that it listed when it was made.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import OptionError, UnavailableError
from millpond.lookup.push_down.conditions import COMPARE, Condition, Conditions
from millpond.lookup.push_down.narrowed import narrow_copy
from millpond.lookup.sources.declared import declared_columns, declared_names, split_schema
from millpond.spark.environment.versions import to_arrow_schema


class SparkScan:
    """A table of Spark's catalog, a DataFrame, or a function that makes one at every load.

    Args:
        source: the table's name, the DataFrame, or the function.
        keys: the key columns.
        columns: the columns of a row; every column that is not a key by default.
        spark: the session; the active one by default.

    Raises:
        OptionError: the DataFrame is a stream, there is no session, or a column is not there.

    For example, `LookupTable("planes", SparkScan("hive_db.planes", keys=["tailnum"]), {"lookup.cache": "FULL"})`.
    """

    def __init__(
        self,
        source: str | DataFrame | Callable[[], DataFrame],
        keys: Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        spark: SparkSession | None = None,
    ) -> None:
        session = spark or SparkSession.getActiveSession()
        if session is None:
            raise OptionError("SparkScan: there is no active Spark session; make one first, or give it as spark=")
        self._session = session
        self._source = source
        self._where = f"Spark table {source!r}" if isinstance(source, str) else "the scanned DataFrame"
        self.conditions: Conditions = ()
        frame = self._frame()
        if frame.isStreaming:
            raise OptionError(
                f"{self._where}: expected a batch DataFrame, got a stream; write it to a table, and scan that"
            )
        self.key_schema, self.row_schema = split_schema(self._where, to_arrow_schema(frame.schema), keys, columns)

    def scan(self) -> pa.Table:
        """The declared columns of the table as it is now.

        Raises:
            UnavailableError: Spark could not compute it.
            DataError: a declared column is not there any more.
        """
        frame = self._frame()
        names = declared_names(self._where, frame.columns, self.key_schema, self.row_schema)
        for condition in self.conditions:
            frame = frame.where(_predicate(condition))
        try:
            table = frame.select(*(F.col(f"`{name}`") for name in names)).toArrow()
        except PySparkException as error:
            raise UnavailableError(f"{self._where}: Spark could not read it: {error}") from error
        return declared_columns(self._where, table, self.key_schema, self.row_schema)

    def pushed_down(self, columns: Sequence[str], where: Conditions) -> tuple[Self, Conditions]:
        """The same table, of which Spark reads fewer columns and rows."""
        return narrow_copy(self, columns, where), ()

    def _frame(self) -> DataFrame:
        if isinstance(self._source, str):
            self._session.catalog.refreshTable(self._source)
            return self._session.table(self._source)
        return self._source if isinstance(self._source, DataFrame) else self._source()

    def __repr__(self) -> str:
        return f"SparkScan({self._source!r})"


def _predicate(condition: Condition) -> Column:
    column = F.col(f"`{condition.column}`")
    if condition.operator == "in":
        return column.isin(list(condition.value))
    if condition.operator == "not in":
        return ~column.isin(list(condition.value))
    compared: Any = COMPARE[condition.operator](column, condition.value)
    return compared
