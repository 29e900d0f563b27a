"""An Iceberg table as the source of a full cache, read by the `pyiceberg` package without Spark.

The invariant: a load reads one snapshot of the table, the newest that is committed when it begins.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Self

import pyarrow as pa

from millpond.errors import MissingDependencyError, OptionError, UnavailableError
from millpond.lookup.push_down.conditions import Condition, Conditions
from millpond.lookup.push_down.narrowed import narrow_copy
from millpond.lookup.sources.declared import declared_columns, declared_names, split_schema
from millpond.masking import masked, tellable

_PREDICATES = {
    "=": "EqualTo",
    "!=": "NotEqualTo",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
    "in": "In",
    "not in": "NotIn",
}


class IcebergScan:
    """A scan of an Iceberg table of a catalog. Every load reads the newest snapshot.

    Args:
        catalog: the catalog's name in pyiceberg's configuration.
        table: the table's identifier, such as `flights.planes`.
        keys: the key columns.
        columns: the columns of a row; by default every column that is not a key.
        properties: the catalog's properties, in addition to the configuration or instead of it: `type`, `uri`,
            `warehouse` …

    Raises:
        OptionError: the catalog has no such table.
        UnavailableError: the catalog or the table's files cannot be read.
        DataError: it does not have the declared columns.
    """

    def __init__(
        self,
        catalog: str,
        table: str,
        keys: Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._catalog = catalog
        self._table = table
        self._properties = dict(properties or {})
        self.conditions: Conditions = ()
        self.key_schema, self.row_schema = split_schema(self._where, self._load().schema().as_arrow(), keys, columns)

    def scan(self) -> pa.Table:
        """Return the declared columns of the newest snapshot."""
        iceberg = self._load()
        names = declared_names(self._where, iceberg.schema().column_names, self.key_schema, self.row_schema)
        try:
            table = iceberg.scan(row_filter=_row_filter(self.conditions), selected_fields=tuple(names)).to_arrow()
        except OSError as error:
            raise self._unavailable(error) from tellable(error)
        return declared_columns(self._where, table, self.key_schema, self.row_schema)

    def version(self) -> int | None:
        """Return the id of the newest snapshot; None before the first."""
        snapshot = self._load().current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    def pushed_down(self, columns: Sequence[str], where: Conditions) -> tuple[Self, Conditions]:
        """Return a scan of the same table that reads fewer columns and rows. No condition remains."""
        return narrow_copy(self, columns, where), ()

    @property
    def _where(self) -> str:
        return f"Iceberg table {self._table} of catalog {self._catalog!r}"

    def _load(self) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NoSuchTableError, RESTError
        except ImportError as error:
            raise MissingDependencyError(
                "Iceberg tables need pyiceberg, which is not installed; run: pip install 'millpond[iceberg]'"
            ) from error
        try:
            return load_catalog(self._catalog, **self._properties).load_table(self._table)
        except NoSuchTableError as error:
            raise OptionError(f"{self._where}: there is no such table; check its name and the catalog's") from error
        except (RESTError, OSError) as error:
            raise self._unavailable(error) from tellable(error)

    def _unavailable(self, error: Exception) -> UnavailableError:
        return UnavailableError(f"{self._where}: cannot be read ({type(error).__name__}: {masked(error)})")

    def __repr__(self) -> str:
        return f"IcebergScan({self._table!r})"


def _row_filter(given: Conditions) -> Any:
    from pyiceberg import expressions

    def predicate(condition: Condition) -> Any:
        checked = getattr(expressions, _PREDICATES[condition.operator])(condition.column, condition.value)
        # In Iceberg a null is not equal to any value, so these two would keep nulls, which fulfil no condition here.
        if condition.operator in ("!=", "not in"):
            return expressions.And(checked, expressions.NotNull(condition.column))
        return checked

    return reduce(expressions.And, map(predicate, given), expressions.AlwaysTrue())
