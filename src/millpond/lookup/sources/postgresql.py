"""A table in PostgreSQL through psycopg: prepared queries, binary answers and kept connections.

`SqlLookup` uses it. A batch of keys is one query, which joins the table with `unnest` of one array for each
key column. The query's text does not depend on the number of keys, so it is prepared once per connection. Its
plan is the generic one, because planning for thousands of given keys would take longer than the lookup. Keys
are sent sorted, so that the index is read in order.

The invariant: **each row comes with the number of its key** (`with ordinality`), so rows need not be matched with
keys. If the database may treat different keys as equal (a collation, padding), the keys are read back and compared.

A copy of the source in another process opens no connection before its first query, because the description of the
table is pickled with it. Connections are not tested before use. If a kept connection turns out to be broken, it is
closed together with all idle ones, and the query is sent again on a new one. This is safe, because a query changes
nothing.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import DataError, MissingDependencyError, OptionError, UnavailableError
from millpond.lookup.functions.columns import FoundColumns
from millpond.lookup.functions.keys import check_key_types
from millpond.lookup.push_down.conditions import Condition, Conditions
from millpond.lookup.sources.declared import declared_schema
from millpond.lookup.sources.postgresql_scan import copied_batches, copied_columns
from millpond.lookup.sources.postgresql_types import (
    ARRAY_OIDS,
    CatalogColumn,
    SqlType,
    array_bytes,
    possible,
    sql_type,
)
from millpond.masking import masked, tellable

if TYPE_CHECKING:
    from psycopg import Connection

T = TypeVar("T")

_OPERATORS = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "in": "= any", "not in": "<> all"}

_COLUMNS = """
    select a.attname, b.typname, format_type(b.oid, null),
        case when t.typtype = 'd' then t.typtypmod else a.atttypmod end, b.typtype,
        e.typname, coalesce(c.collisdeterministic, true)
    from pg_attribute a
        join pg_type t on t.oid = a.atttypid
        join pg_type b on b.oid = case when t.typtype = 'd' then t.typbasetype else t.oid end
        left join pg_type e on e.oid = b.typelem and b.typcategory = 'A'
        left join pg_collation c on c.oid = a.attcollation
    where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped
    order by a.attnum
"""


@dataclass(frozen=True)
class _Described:
    """The table's columns: how each is read, and the catalog's type names of the key columns."""

    columns: dict[str, SqlType]
    type_names: dict[str, str]


class PostgresqlTable:
    """One table, with its key columns and the columns to read.

    Args:
        url: a URL of SQLAlchemy or libpq.
        table: its name, as `schema.table` if it is not in the search path.
        keys: the key columns.
        columns: the columns of a row.
        conditions: the conditions that rows must fulfil.
        timeout_ms: the longest wait for a connection, for the answer to a query, and for the next rows of a scan.
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
        scheme, _, rest = url.partition("://")
        self._url = f"{scheme.partition('+')[0]}://{rest}"
        self._table = table
        self._keys, self._columns = tuple(keys), tuple(columns)
        self._conditions = conditions
        self._timeout_ms = timeout_ms
        self._described: _Described | None = None
        self._idle: list[Connection[Any]] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the connections, for another process."""
        return {name: value for name, value in vars(self).items() if name not in ("_idle", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _idle=[], _lock=threading.Lock())

    def open(self) -> None:
        """Check the table and its columns, unless they are known already."""
        if self._described is None:
            self._described = self._ask(self._describe)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """Return the key columns and the columns of a row, with their Arrow types."""
        types = self._types()
        key_schema, row_schema = (
            pa.schema([(name, types[name].arrow) for name in names]) for names in (self._keys, self._columns)
        )
        for name in self._keys:
            if pa.types.is_list(types[name].arrow):
                raise OptionError(
                    f"{self._where}, key column {name!r}: an array can be no key, since caches and joins compare "
                    "keys as plain values; look up by a column of text or numbers that stands for it, with an index of "
                    "its own, and give the events the same"
                )
        check_key_types(self._where, key_schema)
        for name in self._keys:
            if not types[name].key:
                raise OptionError(
                    f"{self._where}, key column {name!r}: PostgreSQL does not compare its type for equality; look up "
                    "through a view that casts it to text or jsonb"
                )
        return key_schema, row_schema

    def narrowed(self, columns: Sequence[str], conditions: Conditions) -> "PostgresqlTable":
        """Return the same table with fewer columns and other conditions. It shares this one's description."""
        narrow = copy(self)
        vars(narrow).update(_columns=tuple(columns), _conditions=conditions)
        return narrow

    def lookup_columns(self, keys: Sequence[pa.Array]) -> FoundColumns:
        """Return the rows of distinct keys, given as one array of the column's type for each key column."""
        self.open()
        asked, numbers = self._asked(keys)
        query, columns = self._lookup_query()
        if not len(numbers):
            return FoundColumns(numbers, self._batch([], columns))
        rows, oids = self._ask(lambda connection: self._run(connection, query, asked))
        self._check_types(columns, oids[1:])
        ordinals, *values = zip(*rows, strict=True) if rows else [()] * (1 + len(columns))
        found = self._batch(values, columns)
        of_rows = np.array(ordinals, np.int64) - 1
        return self._checked(asked, found, of_rows, numbers)

    def scan_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield every row, keys first."""
        types = {name: self._types()[name] for name in declared_schema(*self.schemas()).names}
        where, values = self._where_clause()
        columns = copied_columns({name: f"t.{self._quoted(name)}" for name in types}, types)
        query = f"select {columns} from {self._quoted(self._table)} t{where}"
        # A copy takes no parameters, so psycopg writes the values of the conditions into the query.
        written = self._ask(lambda connection: _psycopg().ClientCursor(connection).mogrify(query, values))
        yield from copied_batches(self._where, self._conninfo(), written, types, self._timeout_ms)

    def version(self, changed_by: str) -> tuple[Any, ...]:
        """Return the greatest value of a column, and the number of rows."""
        query = f"select max({self._quoted(changed_by)})::text, count(*) from {self._quoted(self._table)}".replace(
            "%%", "%"
        )
        (row,) = self._ask(lambda connection: connection.execute(query).fetchall())
        return tuple(row)

    def explain(self, keys: Sequence[pa.Array]) -> str:
        """Return the database's plan for a lookup of these keys."""
        self.open()
        asked, _ = self._asked(keys)
        query = f"explain {self._lookup_query()[0]}"
        return "\n".join(line for (line,) in self._ask(lambda connection: self._run(connection, query, asked))[0])

    def _asked(self, keys: Sequence[pa.Array]) -> tuple[list[pa.Array], Any]:
        """Return the keys that can exist, sorted by their first column, and their numbers."""
        assert self._described is not None  # noqa: S101 - the caller has opened it
        wanted = np.ones(len(keys[0]), np.bool_)
        for column, name in zip(keys, self._keys, strict=True):
            there = possible(column, self._described.type_names[name])
            if there is not None:
                wanted &= there
        numbers = np.flatnonzero(wanted)
        first = keys[0].take(pa.array(numbers))
        numbers = numbers[pc.sort_indices(first).to_numpy()]
        order = pa.array(numbers)
        return [column.take(order) for column in keys], numbers

    def _lookup_query(self) -> tuple[str, list[str]]:
        """Return the query for a batch of keys, and the columns that it reads after the number of the key."""
        types = self._types()
        checked = [name for name in self._keys if types[name].read_back != "never"]
        names = list(dict.fromkeys([*self._columns, *checked]))
        arrays = ", ".join("%s" for _ in self._keys)
        aliases = [f"k{place}" for place in range(len(self._keys))]
        equal = " and ".join(
            f"t.{self._quoted(name)} = {types[name].key_expression.replace('{}', f'k.{alias}')}"
            for name, alias in zip(self._keys, aliases, strict=True)
        )
        where, _ = self._where_clause()
        read = "".join(f", {self._read(name)}" for name in names)
        return (
            f"select k.n{read} from unnest({arrays}) with ordinality as k({', '.join(aliases)}, n) "
            f"join {self._quoted(self._table)} t on {equal}{where}"
        ), names

    def _where_clause(self) -> tuple[str, list[Any]]:
        clauses = [self._clause(condition) for condition in self._conditions]
        values = [
            list(condition.value) if condition.operator in ("in", "not in") else condition.value
            for condition in self._conditions
        ]
        return (f" where {' and '.join(clauses)}" if clauses else ""), values

    def _clause(self, condition: Condition) -> str:
        operator = _OPERATORS[condition.operator]
        value = "(%s)" if operator in ("= any", "<> all") else "%s"
        return f"t.{self._quoted(condition.column)} {operator} {value}"

    def _read(self, name: str) -> str:
        return self._types()[name].read.replace("{}", f"t.{self._quoted(name)}")

    def _quoted(self, name: str) -> str:
        """Quote a name, or a schema and a name, for SQL."""
        schema, _, last = name.rpartition(".") if name == self._table else ("", "", name)
        return ".".join('"' + part.replace('"', '""').replace("%", "%%") + '"' for part in (schema, last) if part)

    def _run(
        self, connection: "Connection[Any]", query: str, asked: Sequence[pa.Array]
    ) -> tuple[list[tuple[Any, ...]], list[int]]:
        types = self._types()
        arrays = [
            _BinaryArray(array_bytes(column, types[name].key), ARRAY_OIDS[types[name].key])
            for column, name in zip(asked, self._keys, strict=True)
        ]
        with connection.cursor(binary=True) as cursor:
            cursor.execute(query, [*arrays, *self._where_clause()[1]], prepare=True)
            return cursor.fetchall(), [column.type_code for column in cursor.description or ()]

    def _checked(self, asked: Sequence[pa.Array], found: pa.RecordBatch, of_rows: Any, numbers: Any) -> FoundColumns:
        """Return the rows whose keys, if they were read back, are the requested ones."""
        types = self._types()
        kept = np.ones(len(of_rows), np.bool_)
        for column, name in zip(asked, self._keys, strict=True):
            if types[name].read_back == "never":
                continue
            wanted = column.take(pa.array(of_rows))
            same = pc.equal(found.column(name), wanted).to_numpy(zero_copy_only=False)
            if types[name].read_back == "refuse" and not same.all():
                other = int(np.flatnonzero(~same)[0])
                raise DataError(
                    f"{self._where}: the database returned key {found.column(name)[other].as_py()!r}, "
                    "which was not asked for in this form; it compares keys otherwise than by equal values (case, "
                    "padding, type). Look up through a view that gives the key in the form the events have"
                )
            kept &= same
        rows = found.select(list(self._columns))
        if not kept.all():
            of_rows, rows = of_rows[kept], rows.filter(pa.array(kept))
        return FoundColumns(numbers[of_rows], rows)

    def _check_types(self, names: Sequence[str], oids: Sequence[int]) -> None:
        types = self._types()
        for name, oid in zip(names, oids, strict=True):
            if oid != types[name].oid:
                raise DataError(
                    f"{self._where}, column {name!r}: its type was {types[name].arrow} when the table was opened, and "
                    f"has changed since (to type {oid} of pg_type); declare the table anew"
                )

    def _batch(self, values: Sequence[Sequence[Any]], names: Sequence[str]) -> pa.RecordBatch:
        types = self._types()
        schema = pa.schema([(name, types[name].arrow) for name in names])
        arrays = []
        for field, column in zip(schema, values or [()] * len(schema), strict=True):
            try:
                arrays.append(pa.array(column, field.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as error:
                raise DataError(
                    f"{self._where}, column {field.name!r}: a value does not fit {field.type}: {error}"
                ) from error
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([], pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _types(self) -> dict[str, SqlType]:
        self.open()
        assert self._described is not None  # noqa: S101 - open() has set it, or raised
        return self._described.columns

    def _describe(self, connection: "Connection[Any]") -> _Described:
        rows = connection.execute(_COLUMNS, (self._quoted(self._table).replace("%%", "%"),)).fetchall()
        if not rows:
            raise OptionError(f"{self._where}: there is no such table; check its name and schema")
        catalog = {row[0]: CatalogColumn(*row) for row in rows}
        conditions = [condition.column for condition in self._conditions]
        missing = [name for name in (*self._keys, *self._columns, *conditions) if name not in catalog]
        if missing:
            raise OptionError(f"{self._where}: there is no column {missing}; it has {', '.join(catalog)}")
        wanted = dict.fromkeys([*self._keys, *self._columns])
        return _Described(
            {name: sql_type(self._where, catalog[name]) for name in wanted},
            {name: catalog[name].type_name for name in self._keys},
        )

    def _ask(self, question: "Callable[[Connection[Any]], T]") -> T:
        """Run a question over a kept connection, or over a new one if that is broken. Return its result."""
        psycopg = _psycopg()
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            try:
                return self._put_back(connection, question)
            except (psycopg.OperationalError, psycopg.errors.FeatureNotSupported) as error:
                # PostgreSQL rejects a plan prepared before a column changed its type as "not supported".
                stale = isinstance(error, psycopg.errors.FeatureNotSupported)
                if not stale and not connection.broken:
                    raise self._failed(error) from tellable(error)
                connection.close()
                self.close()
            except psycopg.Error as error:
                raise self._failed(error) from tellable(error)
        try:
            return self._put_back(self._connect(), question)
        except psycopg.Error as error:
            raise self._failed(error) from tellable(error)

    def _put_back(self, connection: "Connection[Any]", question: "Callable[[Connection[Any]], T]") -> T:
        try:
            return question(connection)
        finally:
            if connection.broken or connection.closed:
                connection.close()
            else:
                with self._lock:
                    self._idle.append(connection)

    def _connect(self) -> "Connection[Any]":
        psycopg = _psycopg()
        conninfo = self._conninfo(f"-c statement_timeout={self._timeout_ms} -c plan_cache_mode=force_generic_plan")
        try:
            connection: Connection[Any] = psycopg.connect(conninfo, autocommit=True)
        except psycopg.Error as error:
            raise self._failed(error) from tellable(error)
        _register(connection)
        return connection

    def _conninfo(self, settings: str = "") -> str:
        """Return how libpq connects, with these settings of the server's for the session."""
        psycopg = _psycopg()
        given = psycopg.conninfo.conninfo_to_dict(self._url).get("options") or ""
        conninfo: str = psycopg.conninfo.make_conninfo(
            self._url,
            client_encoding="UTF8",
            connect_timeout=max(1, round(self._timeout_ms / 1_000)),
            tcp_user_timeout=self._timeout_ms,
            options=f"{given} -c TimeZone=UTC {settings}".strip(),
        )
        return conninfo

    def _failed(self, error: Exception) -> Exception:
        """Return the error to raise for one of psycopg: `UnavailableError` is tried again, `DataError` is not."""
        psycopg = _psycopg()
        if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return UnavailableError(f"{self._where}: the database did not answer: {masked(error)}")
        return DataError(f"{self._where}: the database refused the lookup: {masked(error)}")

    @property
    def _where(self) -> str:
        psycopg = _psycopg()
        try:
            given = psycopg.conninfo.conninfo_to_dict(self._url)
        except psycopg.ProgrammingError as error:
            # `from None`, because libpq quotes the text that it cannot read, which may be a password.
            raise OptionError(f"{masked(self._url)} is no URL of PostgreSQL: {masked(error)}") from None
        return f"postgresql://{given.get('host', '')}/{given.get('dbname', '')}, table {self._table!r}"


@dataclass(frozen=True, slots=True)
class _BinaryArray:
    """An encoded parameter, and the OID of its type."""

    data: bytes
    oid: int


def _register(connection: "Connection[Any]") -> None:
    """Make a connection send binary arrays unchanged, with their own type."""
    adapt, pq = _psycopg().adapt, _psycopg().pq

    class ArrayDumper(adapt.Dumper):  # type: ignore[misc,name-defined]  # the base comes with psycopg
        format = pq.Format.BINARY

        def get_key(self, obj: _BinaryArray, _format: Any) -> Any:
            return _BinaryArray, obj.oid

        def upgrade(self, obj: _BinaryArray, _format: Any) -> Any:
            upgraded = type(self)(_BinaryArray)
            upgraded.oid = obj.oid
            return upgraded

        def dump(self, obj: _BinaryArray) -> bytes:
            return obj.data

    connection.adapters.register_dumper(_BinaryArray, ArrayDumper)


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise MissingDependencyError(
            "Lookup tables in PostgreSQL need psycopg, which is not installed; run: pip install 'millpond[postgresql]'"
        ) from error
    return psycopg
