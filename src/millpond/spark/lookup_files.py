"""A fully cached table on Spark: one file a load, written by the driver, mapped by every worker of the machine.

Behind the lookup join. The driver loads the table, since one process must say when, and be told of
failures; it writes each load as a new `MappedTable` into a folder of its own and removes the one
before. The invariant: **a file never changes, and a partition keeps to one**: readers see the table
before a reload or after it, never a mixture. Whoever still maps a removed file keeps it until then.

The folder belongs to the driver's process and goes with it, or with the table (`OwnedFolder`).

Trade-off: executors on other machines must see the folder, so on a cluster TMPDIR of the driver must
lie on storage that all share.
"""

import gc
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from millpond.errors import UnavailableError
from millpond.lookup import HeldTable, LookupTable, MappedTable
from millpond.spark.folders import OwnedFolder, user_folder

_TABLE = ".table"


class PublishedTable:
    """The driver's end: opens a table so that every load of it lands in `folder`."""

    def __init__(self, table: LookupTable, columns: Sequence[str] | None) -> None:
        self._owned = OwnedFolder(user_folder(), "lookup")
        self.folder = self._owned.path
        self._numbers = count(1)
        try:
            table.open(on_swap=self._publish, hold=self._hold, columns=columns)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the folder."""
        self._owned.close()

    def _hold(self, table: pa.Table, keys: Sequence[str]) -> HeldTable:
        schema = pa.schema([(field.name, spark_arrow_type(field.type)) for field in table.schema])
        loaded = [table.cast(schema) if schema != table.schema else table]
        del table
        # Made beside its place: a load that is refused afterwards is never seen.
        made = MappedTable.of(loaded.pop(), keys, self.folder / f"{next(self._numbers):012d}.new")
        pa.default_memory_pool().release_unused()
        return made

    def _publish(self, held: HeldTable) -> None:
        assert isinstance(held, MappedTable)  # noqa: S101 - made by _hold
        before = versions(self.folder)
        held.path.rename(held.path.with_suffix(_TABLE))
        for outdated in [*before, *self.folder.glob("*.new")]:
            outdated.unlink(missing_ok=True)
        gc.collect()


def spark_arrow_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type in which Spark exchanges a column, so that no reader has to convert it."""
    spark_type = from_arrow_type(arrow_type, prefer_timestamp_ntz=True)
    # An instant is the same in every zone; in UTC no worker has to know the session's.
    return to_arrow_type(spark_type, timezone="UTC")


def newest(name: str, folder: Path) -> MappedTable:
    """The newest version of a table, mapped."""
    while True:
        there = versions(folder)
        if not there:
            raise UnavailableError(
                f"lookup table {name!r}: no file of it in {folder} on this host; the driver writes it there, "
                "so the executors must see the driver's temporary folder (TMPDIR), and the table must not be closed"
            )
        try:
            return MappedTable(there[-1])
        except FileNotFoundError:
            # A reload since we looked has removed it, so there is a newer one.
            continue


def versions(folder: Path) -> list[Path]:
    """The whole files of a table, oldest first."""
    return sorted(folder.glob(f"*{_TABLE}"))
