"""A Delta table as the source of a full cache, read by the `deltalake` package without Spark.

The invariant: a load reads one version of the table, the newest that is committed when it begins.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from millpond.errors import MissingDependencyError, UnavailableError
from millpond.lookup.push_down.conditions import Conditions, arrow_filter
from millpond.lookup.push_down.narrowed import narrow_copy
from millpond.lookup.sources.declared import declared_columns, declared_names, split_schema
from millpond.masking import masked, tellable


class DeltaScan:
    """A scan of a Delta table. Every load reads the newest version.

    Args:
        uri: the table's folder: a path, or a URI such as `s3://bucket/planes`.
        keys: the key columns.
        columns: the columns of a row; by default every column that is not a key.
        storage_options: credentials and the like, as `deltalake.DeltaTable` takes them.

    Raises:
        UnavailableError: the table cannot be read.
        DataError: it does not have the declared columns.
    """

    def __init__(
        self,
        uri: str,
        keys: Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._uri = str(uri)
        self._storage_options = dict(storage_options or {})
        self.conditions: Conditions = ()
        schema = pa.schema(self._table().schema().to_arrow())
        self.key_schema, self.row_schema = split_schema(self._where, schema, keys, columns)

    def scan(self) -> pa.Table:
        """Return the declared columns of the newest version."""
        delta = self._table()
        there = pa.schema(delta.schema().to_arrow()).names
        names = declared_names(self._where, there, self.key_schema, self.row_schema)
        try:
            table = delta.to_pyarrow_table(columns=names, filters=arrow_filter(self.conditions))
        except OSError as error:
            raise self._unavailable(error) from tellable(error)
        return declared_columns(self._where, table, self.key_schema, self.row_schema)

    def version(self) -> int:
        """Return the number of the table's newest version."""
        return int(self._table().version())

    def pushed_down(self, columns: Sequence[str], where: Conditions) -> tuple[Self, Conditions]:
        """Return a scan of the same table that reads fewer columns and rows. No condition remains."""
        return narrow_copy(self, columns, where), ()

    @property
    def _where(self) -> str:
        return f"Delta table {masked(self._uri)}"

    def _table(self) -> Any:
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError
        except ImportError as error:
            raise MissingDependencyError(
                "Delta tables need deltalake, which is not installed; run: pip install 'millpond[delta]'"
            ) from error
        try:
            return DeltaTable(self._uri, storage_options=self._storage_options or None)
        except (DeltaError, OSError) as error:
            raise self._unavailable(error) from tellable(error)

    def _unavailable(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"{self._where}: cannot be read ({type(error).__name__}: {masked(error)}); check the path and the storage "
            "options"
        )

    def __repr__(self) -> str:
        return f"DeltaScan({masked(self._uri)!r})"
