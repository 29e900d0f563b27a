"""Reads all rows of a query to PostgreSQL as Arrow batches, through ADBC.

ADBC copies the rows in binary form, and makes no Python object of a value. The invariant: **a scan returns the values
that a lookup returns, or raises an error that names the column.** ADBC does not keep it by itself: it flattens arrays
of several dimensions, and lets infinite dates overflow. So the columns are read in a form that shows this, and checked.

A scan may take as long as it needs, but its next batch may not: the query is cancelled then.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import DataError, MissingDependencyError, UnavailableError
from millpond.lookup.sources.postgresql_types import ARRAY_ELEMENTS, SqlType
from millpond.masking import masked, tellable

_BATCH_BYTES = 1 << 20
_INTERVAL_OID = 1186

_COPIED = {
    16: pa.bool_(),
    17: pa.binary(),
    19: pa.string(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    25: pa.string(),
    700: pa.float32(),
    701: pa.float64(),
    1042: pa.string(),
    1043: pa.string(),
    1082: pa.date32(),
    1083: pa.time64("us"),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
    _INTERVAL_OID: pa.int64(),
    1700: pa.string(),
}
"""The types that ADBC returns, by the OID of PostgreSQL's type. An interval is read as its microseconds."""

_INTERVAL_US = """(
    (extract(year from {}) * 365 + extract(month from {}) * 30 + extract(day from {})) * 86400000000
    + extract(hour from {}) * 3600000000 + extract(minute from {}) * 60000000 + extract(microseconds from {})
)::int8"""
"""A month has 30 days and a year 365, as psycopg reads them."""

_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


def copied_columns(names: Mapping[str, str], types: Mapping[str, SqlType]) -> str:
    """Return what a scan selects.

    Args:
        names: the columns, each with its quoted name in SQL.
        types: how each is read.
    """
    columns = [_copied(types[name]).replace("{}", quoted) for name, quoted in names.items()]
    dimensions = [f"array_ndims({quoted})" for name, quoted in names.items() if pa.types.is_list(types[name].arrow)]
    return ", ".join([*columns, *dimensions])


def _copied(column: SqlType) -> str:
    if column.oid == _INTERVAL_OID:
        return _INTERVAL_US
    # A slice of the whole array counts from 1. ADBC refuses to read any other first number.
    return "({})[:]" if column.oid in ARRAY_ELEMENTS else column.read


def copied_batches(
    where: str, conninfo: str, query: str, types: Mapping[str, SqlType], timeout_ms: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query that selects `copied_columns` of these types.

    Args:
        where: names the table in errors.
        conninfo: where the database is, as libpq reads it.
        query: without parameters.
        types: how each column is read, in the query's order.
        timeout_ms: the longest wait for the next batch.

    Raises:
        UnavailableError: the database did not answer, or broke off.
        DataError: it refused the query, or a value or a column's type is not what a lookup reads.
    """
    dbapi = _dbapi()
    failed = _Failures(where, timeout_ms)
    with failed.told(), closing(dbapi.connect(conninfo, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
        with failed.cancelled_late(cursor.adbc_cancel):
            cursor.execute(query)
            batches = cursor.fetch_record_batch()
        _check_types(where, batches.schema, types)
        while True:
            try:
                with failed.cancelled_late(cursor.adbc_cancel):
                    batch = batches.read_next_batch()
            except StopIteration:
                return
            yield _checked(where, batch, types)


class _Failures:
    """Raises what goes wrong in one scan as errors of Millpond, and cancels its query if an answer is late."""

    def __init__(self, where: str, timeout_ms: int) -> None:
        self._where = where
        self._timeout_ms = timeout_ms
        self._late = False

    @contextmanager
    def told(self) -> Iterator[None]:
        driver = _driver()
        try:
            yield
        except driver.Error as error:
            raise self._error(error) from tellable(error)
        except OSError as error:
            # In the middle of the rows ADBC does not give the database's code, so the scan may be tried again.
            raise self._late_error() or UnavailableError(
                f"{self._where}: the scan broke off: {masked(error)}"
            ) from tellable(error)
        except pa.ArrowInvalid as error:
            raise DataError(f"{self._where}: the scan cannot be read: {masked(error)}") from tellable(error)

    @contextmanager
    def cancelled_late(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Cancel the query if what is done here takes longer than the limit."""

        def cancel_query() -> None:
            self._late = True
            cancel()

        timer = threading.Timer(self._timeout_ms / 1_000, cancel_query)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _late_error(self) -> UnavailableError | None:
        if not self._late:
            return None
        return UnavailableError(
            f"{self._where}: the database did not send the next rows of the scan within {self._timeout_ms} ms; "
            "see whether the table is locked, or raise timeout_ms"
        )

    def _error(self, error: Any) -> Exception:
        import psycopg

        late = self._late_error()
        if late is not None:
            return late
        passing: type[Exception] = psycopg.OperationalError
        try:
            raised = psycopg.errors.lookup(error.sqlstate) if error.sqlstate else passing
        except KeyError:
            raised = psycopg.DataError
        if issubclass(raised, passing):
            return UnavailableError(f"{self._where}: the database did not answer the scan: {masked(error)}")
        return DataError(f"{self._where}: the database refused the scan: {masked(error)}")


def _check_types(where: str, schema: pa.Schema, types: Mapping[str, SqlType]) -> None:
    for (name, column), field in zip(types.items(), schema, strict=False):
        given = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        expected = _COPIED.get(ARRAY_ELEMENTS.get(column.oid, column.oid))
        if column.oid in ARRAY_ELEMENTS:
            given = given.value_type if pa.types.is_list(given) else given
        if given != expected:
            raise DataError(
                f"{where}, column {name!r}: its type was {column.arrow} when the table was opened, and has changed "
                f"since (a scan reads {given}, and {expected} was expected); declare the table anew"
            )


def _checked(where: str, batch: pa.RecordBatch, types: Mapping[str, SqlType]) -> pa.RecordBatch:
    """Return the columns in the types of a lookup."""
    columns = dict(zip(types, batch.columns, strict=False))
    dimensions = iter(batch.columns[len(types) :])
    arrays = [
        _column(f"{where}, column {name!r}", columns[name], column.arrow, dimensions) for name, column in types.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(name, each.arrow) for name, each in types.items()]))


def _column(where: str, column: pa.Array, wanted: pa.DataType, dimensions: Iterator[pa.Array]) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_list(wanted) and (pc.max(next(dimensions)).as_py() or 0) > 1:
        raise DataError(f"{where}: an array has more than one dimension; look up through a view that flattens it")
    if pa.types.is_decimal(wanted):
        _check_digits(where, column, wanted)
    try:
        cast = column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise DataError(f"{where}: a value does not fit {wanted}: {error}") from error
    _check_moments(where, column.flatten() if pa.types.is_list(wanted) else column)
    return cast


def _check_digits(where: str, column: pa.Array, wanted: pa.DataType) -> None:
    """Refuse a number with too many digits, which the cast of a text would let overflow, and what is no number."""
    whole, fraction = wanted.precision - wanted.scale, wanted.scale
    fits = pc.match_substring_regex(column, rf"^-?(0|[0-9]{{0,{whole}}})(\.[0-9]{{0,{fraction}}}0*)?$")
    if pc.all(fits).as_py() is False:
        first = column[pc.index(fits, pa.scalar(False)).as_py()].as_py()
        raise DataError(f"{where}: a value does not fit {wanted}: {first}")


def _check_moments(where: str, column: pa.Array) -> None:
    """Refuse a moment that Python and Spark do not have: infinity, a year outside of 1 to 9999, and 24:00."""
    kind = column.type
    if pa.types.is_date32(kind):
        counted, first, last = pa.int32(), _FIRST_DAY, _LAST_DAY
    elif pa.types.is_timestamp(kind):
        counted, first, last = pa.int64(), _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1
    elif pa.types.is_time64(kind):
        counted, first, last = pa.int64(), 0, _DAY_US - 1
    else:
        return
    found = pc.min_max(column.view(counted)).as_py()
    if found["min"] is not None and (found["min"] < first or found["max"] > last):
        raise DataError(
            f"{where}: a value is outside of what Python and Spark can hold (infinity, a year before 1 or after 9999, "
            "or 24:00); look up through a view that replaces it"
        )


def _dbapi() -> Any:
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError as error:
        raise MissingDependencyError(
            "A scan of a table in PostgreSQL needs adbc-driver-postgresql, which is not installed; "
            "run: pip install 'millpond[postgresql]'"
        ) from error
    return dbapi


def _driver() -> Any:
    import adbc_driver_manager

    return adbc_driver_manager
