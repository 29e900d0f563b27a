"""Everything that differs between the versions of PySpark that Millpond runs on: 4.1, 4.2 and 4.3.

Most differences are internal to PySpark: how it converts its own types to Arrow's, and rows to pandas and back. The
public interface that other modules use is the same in all three versions. So only this module checks the version.

Invariant: each function does what the operators of the *installed* version do. A job that moves from
`transformWithStateInPandas` to Millpond sees the same types and values as before.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.pandas import types as conversion
from pyspark.sql.types import DataType, StructType

from millpond.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
"""Major and minor version of the PySpark that is installed."""

_STATE_PACKAGES = {"pandas": "pandas", "protobuf": "google.protobuf"}

_SERIALIZERS_CONVERT = SPARK < (4, 2)
"""Whether the conversions to and from pandas are methods of the workers' serializers."""


def require_state_packages() -> None:
    """Check for the packages that PySpark's stateful operators import and `pip install pyspark` does not install.

    Raises:
        MissingDependencyError: pandas or protobuf is not installed.
    """
    missing = [package for package, module in _STATE_PACKAGES.items() if not _is_there(module)]
    if missing:
        raise MissingDependencyError(
            f"keyed state needs {' and '.join(missing)}, which PySpark's stateful operators import and which is not "
            'installed. Run: pip install "millpond[spark]"'
        )


def start_state_stores(spark: SparkSession) -> None:
    """Start the driver's coordinator of state stores, which a stateful operator needs.

    Before 4.3 it starts when a session is first asked for its streaming queries. Without this call a batch DataFrame in
    a new session would fail: "Cannot find endpoint: spark://StateStoreCoordinator".
    """
    if SPARK < (4, 3):
        _ = spark.streams.active


def to_arrow_type(kind: DataType) -> pa.DataType:
    """Return Arrow's type for one of Spark's, with instants in UTC.

    Raises:
        PySparkTypeError: Arrow has no such type.

    Example:
        >>> from pyspark.sql.types import TimestampType
        >>> to_arrow_type(TimestampType())
        TimestampType(timestamp[us, tz=UTC])
    """
    # Before 4.2 the zone cannot be chosen, and is UTC.
    return conversion.to_arrow_type(kind) if SPARK < (4, 2) else conversion.to_arrow_type(kind, timezone="UTC")


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return Arrow's schema for one of Spark's, with instants in UTC.

    Raises:
        PySparkTypeError: Arrow has no type for a column.
    """
    return conversion.to_arrow_schema(schema) if SPARK < (4, 2) else conversion.to_arrow_schema(schema, timezone="UTC")


def to_pandas(rows: pa.Table, timezone: str, *, nullable_integers: bool) -> list["pd.Series[Any]"]:
    """Convert columns to pandas as PySpark does for user code.

    Args:
        rows: one chunk for each column, with instants in the session's zone.
        timezone: the session's zone.
        nullable_integers: integers with nulls become pandas' nullable integers. Before 4.2 they always become floats.
    """
    if _SERIALIZERS_CONVERT:
        serializer = _serializer(timezone, safe=True, int_to_decimal=False)
        return [serializer.arrow_to_pandas(column, at) for at, column in enumerate(rows.itercolumns())]
    from pyspark.sql.conversion import ArrowBatchTransformer

    series: list[pd.Series[Any]] = ArrowBatchTransformer.to_pandas(
        rows, timezone=timezone, prefer_int_ext_dtype=nullable_integers
    )
    return series


def from_pandas(
    columns: Sequence["pd.Series[Any]"], schema: StructType, timezone: str, *, safe: bool, int_to_decimal: bool
) -> pa.RecordBatch:
    """Convert user code's output to Arrow as PySpark does.

    Args:
        columns: one for each field of the schema.
        schema: the declared output.
        timezone: the session's zone.
        safe: refuse overflows and truncation (`spark.sql.execution.pandas.convertToArrowArraySafely`).
        int_to_decimal: convert integers to decimals where the schema has decimals.

    Raises:
        PySparkException: a column does not fit its type.
    """
    if _SERIALIZERS_CONVERT:
        serializer = _serializer(timezone, safe=safe, int_to_decimal=int_to_decimal)
        arrays = [
            serializer._create_array(column, to_arrow_type(field.dataType), field.dataType, arrow_cast=True)  # noqa: SLF001
            for column, field in zip(columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema.names)
    from pyspark.sql.conversion import PandasToArrowConversion

    return PandasToArrowConversion.convert(
        columns,
        schema,
        timezone=timezone,
        safecheck=safe,
        arrow_cast=True,
        int_to_decimal_coercion_enabled=int_to_decimal,
    )


def _serializer(timezone: str, *, safe: bool, int_to_decimal: bool) -> Any:
    """Return the serializer that `transformWithStateInPandas` converts with."""
    from pyspark.sql.pandas.serializers import ArrowStreamPandasUDFSerializer

    return ArrowStreamPandasUDFSerializer(
        timezone,
        safe,
        assign_cols_by_name=True,
        arrow_cast=True,
        int_to_decimal_coercion_enabled=int_to_decimal,
    )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
