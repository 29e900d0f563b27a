"""A fully cached table on Spark: one file per load, written by the driver and mapped by every worker of a machine.

The lookup join reads it. The driver loads the table, because one process must decide when, and learn of failures. It
writes each load as a new `MappedTable` into a folder of its own, and removes the one before. The invariant: **a file
never changes, and a partition uses only one**. So readers see the table before a reload or after it, never a mixture. A
removed file stays readable for those that have it mapped.

Executors that see the driver's folder, on the same machine or on shared storage, map the files there. Every other
executor fetches each version once from the driver (`copies`), into a folder that Spark removes with the executor.

The driver's folder belongs to its process, and is removed with it or with the table (`OwnedFolder`).

The trade-off: the source is read only once for the whole cluster, and every host gets the same version. But the driver
needs room for the table, and its network carries a copy to each executor that does not see its folder.
"""

import contextlib
import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_type

from millpond.errors import UnavailableError
from millpond.lookup import HeldTable, LookupTable, MappedTable
from millpond.lookup.caches.column_file import Scanned
from millpond.spark.environment.folders import OwnedFolder, user_folder
from millpond.spark.environment.versions import to_arrow_type
from millpond.spark.lookup.copies import FileServer, fetched
from millpond.spark.lookup.queries import ReadingQueries
from millpond.spark.lookup.tls_server import ServerAddress

_TABLE = ".table"
_FAILED = "failed"


@dataclass(frozen=True)
class Published:
    """The place where a worker finds a table: the driver's folder if it sees that, else the driver's server."""

    name: str
    folder: Path
    server: ServerAddress | None

    def newest(self) -> MappedTable:
        """Map the newest version.

        Raises:
            UnavailableError: there is none, or a reload failed under `on_reload_failure="fail"`.
        """
        while True:
            path = self._newest_path()
            try:
                return MappedTable(path)
            except FileNotFoundError:
                # A reload has removed the file meanwhile, so there is a newer one.
                continue

    def _newest_path(self) -> Path:
        return found_path(self.name, self.folder, self.server, _TABLE)


class PublishedTable:
    """The `FullHome` of a table on the driver. It opens the table and stores every load in a folder.

    Args:
        table: the table to load.
        columns: the row columns to load; None means all.
        session: the session whose executors read it.
        queries: the streaming queries that read it.
    """

    def __init__(
        self, table: LookupTable, columns: Sequence[str] | None, session: SparkSession, queries: ReadingQueries
    ) -> None:
        self._owned = OwnedFolder(user_folder(), "lookup")
        self._queries = queries
        self._numbers = count(1)
        self._server: FileServer | None = None
        folder = self._owned.path
        try:
            table.open(home=self, columns=columns)
            self._server = served(session, lambda: newest_path(table.name, folder))
        except BaseException:
            self.close()
            raise
        self.place = Published(table.name, folder, self._server.address if self._server else None)

    def close(self) -> None:
        """Stop the server and remove the folder."""
        if self._server is not None:
            self._server.close()
        self._owned.close()

    def hold(self, scanned: Scanned, keys: Sequence[str]) -> HeldTable:
        """Write the table under a temporary name, so that readers never see a load that is rejected afterwards."""
        schema = pa.schema([(field.name, spark_arrow_type(field.type)) for field in scanned.schema])
        loaded = [scanned.cast(schema) if schema != scanned.schema else scanned]
        del scanned
        made = MappedTable.of(loaded.pop(), keys, self._owned.path / f"{next(self._numbers):012d}.new")
        pa.default_memory_pool().release_unused()
        return made

    def swap(self, held: HeldTable) -> None:
        """Give the new file its final name, and remove the one before."""
        assert isinstance(held, MappedTable)  # noqa: S101 - made by hold
        folder = self._owned.path
        before = versions(folder)
        held.path.rename(held.path.with_suffix(_TABLE))
        for outdated in [*before, *folder.glob("*.new")]:
            outdated.unlink(missing_ok=True)
        gc.collect()

    def fail(self, error: Exception) -> None:
        """Replace the table's files by the error."""
        folder = self._owned.path
        # The disk may be full. Then readers find no table, and raise a less specific error.
        with contextlib.suppress(OSError):
            unfinished = folder / f"{_FAILED}.unfinished"
            unfinished.write_text(str(error), encoding="utf-8")
            unfinished.rename(folder / _FAILED)
        for outdated in versions(folder):
            outdated.unlink(missing_ok=True)

    def watermark_ms(self) -> int | None:
        """Return the last watermark of the streaming queries that read it."""
        return self._queries.watermark_ms()


def spark_arrow_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type in which Spark exchanges a column. A reader need not convert it."""
    spark_type = from_arrow_type(arrow_type, prefer_timestamp_ntz=True)
    return to_arrow_type(spark_type)


def served(session: SparkSession, newest: Callable[[], Path]) -> FileServer | None:
    """Start a server of the newest file for executors on other machines; None if Spark runs locally."""
    if session.sparkContext.master.partition("[")[0] == "local":
        return None
    conf = session.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return FileServer(newest, host, conf.get("spark.driver.bindAddress") or host)


def found_path(name: str, folder: Path, server: ServerAddress | None, suffix: str) -> Path:
    """Return the newest version of a table's file: in the driver's folder, or as a copy from its server."""
    if server is None or folder.is_dir():
        return newest_path(name, folder, suffix)
    # Spark removes this folder with the executor.
    copies = Path(os.environ["SPARK_LOCAL_DIRS"].split(",")[0]) / f"millpond-{folder.name}"
    return fetched(name, server, copies, suffix)


def newest_path(name: str, folder: Path, suffix: str = _TABLE) -> Path:
    """Return the newest version of a table's file in the driver's folder.

    Raises:
        UnavailableError: there is none, or a reload failed under `on_reload_failure="fail"`.
    """
    failed = folder / _FAILED
    if failed.exists():
        raise UnavailableError(failed.read_text(encoding="utf-8"))
    there = versions(folder, suffix)
    if there:
        return there[-1]
    raise UnavailableError(
        f"lookup table {name!r}: no file of it in {folder}, where the driver writes it; was the table closed while a "
        "query still read it, or is the driver's disk full?"
    )


def versions(folder: Path, suffix: str = _TABLE) -> list[Path]:
    """Return the complete files of a table, oldest first."""
    return sorted(folder.glob(f"*{suffix}"))
