"""A Spark table as the source of a full cache: one of the catalog (also Hive's), or any DataFrame.

Every load is one Spark job. Its rows come to the driver as Arrow, so the table must fit into the driver's memory, and
within `spark.driver.maxResultSize`. The invariant: a load sees the present table. Every load resolves a name
again, or calls a function again. A DataFrame is computed again, but from the files that it listed when it was made.
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
    """A scan of a table in Spark's catalog, of a DataFrame, or of a function that makes one at every load.

    Args:
        source: the table's name, the DataFrame, or the function.
        keys: the key columns.
        columns: the columns of a row; by default every column that is not a key.
        spark: the session; by default the active one.

    Raises:
        OptionError: the DataFrame is a stream, or there is no session.
        DataError: a column does not exist.

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
        """Return the declared columns of the present table.

        Raises:
            UnavailableError: Spark could not compute it.
            DataError: a declared column no longer exists.
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
        """Return a scan of the same table, of which Spark reads fewer columns and rows. No condition remains."""
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
