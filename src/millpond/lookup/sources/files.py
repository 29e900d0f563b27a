"""Table files as the source of a full cache: Parquet, CSV, Arrow and ORC, on disks and object stores.

The invariant: every load reads the files again, and a file that cannot be read to its end gives no table.
Columns and conditions are pushed down to the reader, which skips what it can.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import pyarrow as pa

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup.push_down.conditions import Conditions, arrow_filter
from millpond.lookup.push_down.narrowed import narrow_copy
from millpond.lookup.sources.declared import declared_columns, declared_names, declared_schema, split_schema
from millpond.masking import masked, tellable

if TYPE_CHECKING:
    import pyarrow.dataset as ds

FileFormat: TypeAlias = Literal["parquet", "csv", "arrow", "orc"]
_FORMATS: dict[str, FileFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".orc": "orc",
}


class FileScan:
    """A scan of a file, or of a folder of files with one schema. Every load reads the files again.

    Args:
        path: the file or folder, or a URI such as `s3://bucket/planes`.
        keys: the key columns.
        columns: the columns of a row; by default every column that is not a key.
        format: `"parquet"`, `"csv"`, `"arrow"` or `"orc"`; None goes by the suffix of the file.
        types: the types of columns whose type the file does not give or gets wrong, such as a post code in a
            CSV file, which looks like a number.

    Raises:
        OptionError: the format is unknown.
        UnavailableError: the file cannot be read.
        DataError: it does not have the declared columns, or is not of its format.

    For example, `FileScan("airports.csv", keys=["code"], types={"zip": pa.string()})`.
    """

    def __init__(
        self,
        path: str | Path,
        keys: Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        format: FileFormat | None = None,  # noqa: A002 - what Arrow, pandas and Spark call it
        types: dict[str, pa.DataType] | None = None,
    ) -> None:
        self._path = str(path)
        self._where = masked(path)
        self._format = _FORMATS.get(Path(self._path).suffix.lower()) if format is None else format
        if self._format not in _FORMATS.values():
            raise OptionError(
                f"lookup table {self._where}: expected format to be one of "
                f"{', '.join(sorted(set(_FORMATS.values())))}, got {format!r}; name it, as the path has no suffix that "
                "tells"
            )
        self._types = types or {}
        self.conditions: Conditions = ()
        self.key_schema, self.row_schema = split_schema(self._where, self._schema(), keys, columns)

    def scan(self) -> pa.Table:
        """Return the declared columns of the present files."""
        return self.scan_batches().read_all()

    def scan_batches(self) -> pa.RecordBatchReader:
        """Return what `scan` does, in batches."""
        schema = declared_schema(self.key_schema, self.row_schema)
        return pa.RecordBatchReader.from_batches(schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            files = self._dataset()
            names = declared_names(self._where, files.schema.names, self.key_schema, self.row_schema)
            # Read only one batch ahead, because batches that are not written yet take additional memory.
            scanner = files.scanner(
                columns=names, filter=arrow_filter(self.conditions), batch_readahead=1, fragment_readahead=1
            )
            for batch in scanner.to_batches():
                table = pa.Table.from_batches([batch])
                yield from declared_columns(self._where, table, self.key_schema, self.row_schema).to_batches()
        except (OSError, pa.ArrowInvalid) as error:
            raise self._unreadable(error) from tellable(error)

    def version(self) -> tuple[tuple[Any, ...], ...]:
        """Return path, size, modification time and, on local disks, inode of every file."""
        try:
            files = self._dataset()
            found = files.filesystem.get_file_info(files.files)
            local = type(files.filesystem).__name__ == "LocalFileSystem"
            inodes = [Path(each.path).stat().st_ino if local else 0 for each in found]
            versions = zip(found, inodes, strict=True)
            return tuple(sorted((each.path, each.size, each.mtime_ns, inode) for each, inode in versions))
        except (OSError, pa.ArrowInvalid) as error:
            raise self._unreadable(error) from tellable(error)

    def pushed_down(self, columns: Sequence[str], where: Conditions) -> tuple[Self, Conditions]:
        """Return a scan of the same files that reads fewer columns and rows. No condition remains."""
        return narrow_copy(self, columns, where), ()

    def _schema(self) -> pa.Schema:
        try:
            schema = self._dataset().schema
        except (OSError, pa.ArrowInvalid) as error:
            raise self._unreadable(error) from tellable(error)
        return pa.schema([field.with_type(self._types.get(field.name, field.type)) for field in schema])

    def _dataset(self) -> "ds.Dataset":
        # Imported here, because it also loads pandas if installed: a quarter of a second that other sources can save.
        import pyarrow.dataset as ds
        from pyarrow import csv

        kind = self._format
        if kind == "csv":
            # The reader needs the types: a later cast would not restore leading zeros. An empty cell is null, and a
            # quoted one is an empty string.
            options = csv.ConvertOptions(
                column_types=self._types, strings_can_be_null=True, quoted_strings_can_be_null=False
            )
            kind = ds.CsvFileFormat(convert_options=options)
        return ds.dataset(self._path, format=kind)

    def _unreadable(self, error: Exception) -> Exception:
        if isinstance(error, OSError):
            return UnavailableError(f"lookup table {self._where}: cannot be read ({masked(error)}); check the path")
        return DataError(
            f"lookup table {self._where}: is not a whole {self._format} file, or has not the declared columns "
            f"({masked(error)})"
        )

    def __repr__(self) -> str:
        return f"FileScan({self._where!r})"
