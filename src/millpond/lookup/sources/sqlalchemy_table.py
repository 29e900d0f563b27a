"""A table in any database that SQLAlchemy knows: one query per batch of keys.

`SqlLookup` uses it. A batch is `WHERE key IN (...)`, split only if it has more values than a query may have
parameters. The invariant: every returned row belongs to a requested key, as Python compares keys. A database that
compares differently (a collation that ignores case, padded characters) would leave rows silently unmatched, so such
a row is an error.

Connections are not tested before use. If one turns out to be broken, it is closed together with all idle ones, and
the query is sent again on a new one. This is safe, because a query changes nothing.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from millpond.errors import DataError, MissingDependencyError, OptionError, UnavailableError
from millpond.lookup.functions.columns import FoundColumns
from millpond.lookup.functions.function import Key
from millpond.lookup.functions.keys import check_key_types, python_keys
from millpond.lookup.push_down.conditions import COMPARE, Condition, Conditions
from millpond.lookup.sources.declared import declared_schema
from millpond.lookup.sources.sql_types import arrow_type
from millpond.masking import masked, tellable

if TYPE_CHECKING:
    from sqlalchemy import Engine, Table

_MOST_PARAMETERS = {"mssql": 2_000, "oracle": 1_000}
_MOST_PARAMETERS_ELSE = 30_000
"""PostgreSQL and SQLite take 32,766 parameters in a query, MySQL 65,535."""

_ROWS_A_FETCH = 5_000
"""The number of rows that a scan fetches as Python objects at a time."""

_MYSQL_REFUSALS = {1044, 1045, 1049, 1054, 1142, 1143}
"""Lasting errors that MySQL's drivers report as operational, like a lost connection: no access, no such column."""


class SqlAlchemyTable:
    """One table, with its key columns and the columns to read.

    Args:
        url: SQLAlchemy's database URL.
        table: its name, as `schema.table` if it is not in the default schema.
        keys: the key columns.
        columns: the columns of a row.
        conditions: the conditions that rows must fulfil.
        timeout_ms: the longest wait for a connection, and for the answer to a query.
    """

    def __init__(
        self,
        url: str,
        table: str,
        keys: Sequence[str],
        columns: Sequence[str],
        conditions: Conditions,
        timeout_ms: int,
    ) -> None:
        self._url = url
        self._table_name = table
        self._keys, self._columns = tuple(keys), tuple(columns)
        self._conditions = conditions
        self._timeout_ms = timeout_ms
        self._engine: Engine | None = None
        self._table: Table | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the connections, for another process."""
        return {**self.__dict__, "_engine": None, "_table": None}

    def open(self) -> None:
        """Connect, and check the table and its columns."""
        if self._table is not None:
            return
        sqlalchemy = _sqlalchemy()
        if self._engine is None:
            self._engine = self._new_engine()
        schema, _, name = self._table_name.rpartition(".")
        try:
            self._table = sqlalchemy.Table(
                name, sqlalchemy.MetaData(), schema=schema or None, autoload_with=self._engine
            )
        except sqlalchemy.exc.NoSuchTableError as error:
            raise OptionError(f"{self._where}: there is no such table; check its name and schema") from error
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise self._failed(error) from tellable(error)
        for column in self._table.columns:
            if isinstance(column.type, sqlalchemy.types.Float):
                column.type.asdecimal = False  # MySQL's would give decimals
        missing = [name for name in (*self._keys, *self._columns) if name not in self._table.columns]
        if missing:
            there = ", ".join(column.name for column in self._table.columns)
            self.close()
            raise OptionError(f"{self._where}: there is no column {missing}; it has {there}")

    def _new_engine(self) -> "Engine":
        sqlalchemy = _sqlalchemy()
        try:
            url = sqlalchemy.engine.make_url(self._url)
        except (sqlalchemy.exc.ArgumentError, ValueError) as error:
            # `from None`, because the cause may quote the password.
            raise OptionError(f"{masked(self._url)!r} is no URL of a database: {masked(error)}") from None
        try:
            engine: Engine = sqlalchemy.create_engine(url, connect_args=_connect_args(url, self._timeout_ms))
        except (ImportError, sqlalchemy.exc.NoSuchModuleError) as error:
            raise MissingDependencyError(
                f"{self._where}: the driver of {url.drivername!r} is not installed ({error}); install it, for example "
                "with pip install 'millpond[postgresql]' or 'millpond[mysql]'"
            ) from error
        return engine

    def close(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            self._engine.dispose()
        self._engine = self._table = None

    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """Return the key columns and the columns of a row, with their Arrow types."""
        self.open()
        key_schema, row_schema = self._arrow_schema(self._keys), self._arrow_schema(self._columns)
        check_key_types(self._where, key_schema)
        return key_schema, row_schema

    def narrowed(self, columns: Sequence[str], conditions: Conditions) -> "SqlAlchemyTable":
        """Return the same table with fewer columns and other conditions."""
        return SqlAlchemyTable(self._url, self._table_name, self._keys, columns, conditions, self._timeout_ms)

    def lookup_columns(self, keys: Sequence[pa.Array]) -> FoundColumns:
        """Return the rows of distinct keys, given as one array of the column's type for each key column."""
        _, row_schema = self.schemas()
        places, asked = python_keys(keys)
        numbers = dict(zip(asked, places, strict=True))
        width = len(self._keys)
        _, engine = self._opened()
        step = _MOST_PARAMETERS.get(engine.dialect.name, _MOST_PARAMETERS_ELSE) // width
        rows: list[tuple[Any, ...]] = []
        of_rows: list[int] = []
        for first in range(0, len(asked), step):
            for values in self._select(asked[first : first + step]):
                number = numbers.get(values[:width])
                if number is None:
                    raise DataError(
                        f"{self._where}: the database returned key {values[:width]!r}, "
                        "which was not asked for in this form; it compares keys otherwise than by equal values (case, "
                        "padding, type). Look up through a view that gives the key in the form the events have"
                    )
                of_rows.append(number)
                rows.append(values[width:])
        return FoundColumns(np.array(of_rows, np.int64), self._batch(rows, row_schema))

    def scan_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield every row, keys first, through a server-side cursor if the driver has them."""
        schema = declared_schema(*self.schemas())
        table, engine = self._opened()
        query = self._filtered(_sqlalchemy().select(*(table.columns[name] for name in schema.names)))
        try:
            with engine.connect() as connection:
                cursor = connection.execution_options(yield_per=_ROWS_A_FETCH).execute(query)
                for rows in cursor.partitions():
                    yield self._batch(rows, schema)
        except _sqlalchemy().exc.SQLAlchemyError as error:
            raise self._failed(error) from tellable(error)

    def _batch(self, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        try:
            columns = list(zip(*rows, strict=True)) or [()] * len(schema)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise DataError(f"{self._where}: a value is not of its column's type: {error}") from error
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _select(self, keys: Sequence[Key]) -> list[tuple[Any, ...]]:
        sqlalchemy = _sqlalchemy()
        table, _ = self._opened()
        key_columns = [table.columns[name] for name in self._keys]
        row_columns = [table.columns[name].label(f"row_{place}") for place, name in enumerate(self._columns)]
        wanted = key_columns[0] if len(key_columns) == 1 else sqlalchemy.tuple_(*key_columns)
        values = [key[0] if len(key_columns) == 1 else key for key in keys]
        return self._answer(self._filtered(sqlalchemy.select(*key_columns, *row_columns).where(wanted.in_(values))))

    def _answer(self, query: Any) -> list[tuple[Any, ...]]:
        """Run a query over a kept connection, or over a new one if that is broken. Return its rows."""
        sqlalchemy = _sqlalchemy()
        try:
            return self._executed(query)
        except sqlalchemy.exc.DBAPIError as error:
            if not error.connection_invalidated:
                raise self._failed(error) from tellable(error)
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise self._failed(error) from tellable(error)
        # The kept connection was broken, so the engine has closed all idle ones.
        try:
            return self._executed(query)
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise self._failed(error) from tellable(error)

    def version(self, changed_by: str) -> tuple[Any, ...]:
        """Return the greatest value of a column, and the number of rows."""
        sqlalchemy = _sqlalchemy()
        table, _ = self._opened()
        if changed_by not in table.columns:
            raise OptionError(
                f"{self._where}, changed_by: there is no column {changed_by!r}; "
                f"it has {', '.join(table.columns.keys())}"
            )
        count = sqlalchemy.select(sqlalchemy.func.max(table.columns[changed_by]), sqlalchemy.func.count())
        return self._answer(count.select_from(table))[0]

    def _executed(self, query: Any) -> list[tuple[Any, ...]]:
        _, engine = self._opened()
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query)]

    def _filtered(self, query: Any) -> Any:
        """Return the query with the pushed-down conditions."""
        table, _ = self._opened()
        for condition in self._conditions:
            query = query.where(_clause(table.columns[condition.column], condition))
        return query

    def _opened(self) -> "tuple[Table, Engine]":
        self.open()
        assert self._table is not None  # noqa: S101 - open() has set both, or raised
        assert self._engine is not None  # noqa: S101
        return self._table, self._engine

    def _arrow_schema(self, names: Sequence[str]) -> pa.Schema:
        assert self._table is not None  # noqa: S101 - the caller has opened it
        return pa.schema([(name, arrow_type(self._where, name, self._table.columns[name].type)) for name in names])

    @property
    def _where(self) -> str:
        return f"{masked(self._url)}, table {self._table_name!r}"

    def _failed(self, error: Exception) -> Exception:
        """Return the error to raise for one of SQLAlchemy: `UnavailableError` is tried again, `DataError` is not."""
        exc = _sqlalchemy().exc
        passing = (exc.OperationalError, exc.InterfaceError, exc.TimeoutError)
        if getattr(error, "connection_invalidated", False) or (isinstance(error, passing) and not _lasts(error)):
            return UnavailableError(f"{self._where}: the database did not answer: {masked(error)}")
        return DataError(f"{self._where}: the database refused the lookup: {masked(error)}")


def _lasts(error: Any) -> bool:
    """Return whether an operational error would recur at every try. Drivers report many errors as operational."""
    original = getattr(error, "orig", None)
    code = original.args[0] if original is not None and original.args else None
    return code in _MYSQL_REFUSALS or str(code).startswith("no such ")


def _clause(column: Any, condition: Condition) -> Any:
    match condition.operator:
        case "in":
            return column.in_(list(condition.value))
        case "not in":
            return column.not_in(list(condition.value))
        case word:
            return COMPARE[word](column, condition.value)


def _connect_args(url: Any, timeout_ms: int) -> dict[str, Any]:
    """Return the time-out arguments of the known drivers. For others, the URL must set the time-out."""
    seconds = max(1, round(timeout_ms / 1_000))
    match url.drivername:
        case "postgresql+psycopg2":
            options = f"{url.query.get('options', '')} -c statement_timeout={timeout_ms}".strip()
            return {"connect_timeout": seconds, "options": options, "tcp_user_timeout": timeout_ms}
        case "mysql+pymysql" | "mariadb+pymysql":
            return {"connect_timeout": seconds, "read_timeout": seconds, "write_timeout": seconds}
        case "sqlite" | "sqlite+pysqlite":
            return {"timeout": timeout_ms / 1_000}
    return {}


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
    except ImportError as error:
        raise MissingDependencyError(
            "SQL lookup tables need SQLAlchemy, which is not installed; run: pip install 'millpond[sql]'"
        ) from error
    return sqlalchemy
