"""A fully cached table on Spark: one file a load, written by the driver, mapped by every worker of a machine.

Behind the lookup join. The driver loads the table, since one process must say when, and be told of
failures; it writes each load as a new `MappedTable` into a folder of its own and removes the one
before. The invariant: **a file never changes, and a partition keeps to one**: readers see the table
before a reload or after it, never a mixture. Whoever still maps a removed file keeps it until then.

Executors that see the driver's folder, on its machine or on storage they share, map the files there.
Any other fetches each version once from the driver (`lookup_copies`), into the folder that Spark
removes when the executor ends.

The driver's folder belongs to its process and goes with it, or with the table (`OwnedFolder`).

Trade-off: the source is read once for the whole cluster, and every host has the same version, but
the driver must have room for the table, and its network carries it to each host that cannot see it.
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
from millpond.spark.lookup.copies import FileServer, ServerAddress, fetched
from millpond.spark.lookup.queries import ReadingQueries

_TABLE = ".table"
_FAILED = "failed"


@dataclass(frozen=True)
class Published:
    """How a worker finds a table: in the driver's folder if it sees that, else at the driver's server."""

    name: str
    folder: Path
    server: ServerAddress | None

    def newest(self) -> MappedTable:
        """The newest version, mapped.

        Raises:
            UnavailableError: there is none, or a reload failed and readers are to fail with it.
        """
        while True:
            path = self._newest_path()
            try:
                return MappedTable(path)
            except FileNotFoundError:
                # A reload since we looked has removed it, so there is a newer one.
                continue

    def _newest_path(self) -> Path:
        return found_path(self.name, self.folder, self.server, _TABLE)


class PublishedTable:
    """The driver's end, the `FullHome` of a table: opens it so that every load of it lands in a folder.

    Args:
        table: what to load.
        columns: which of its row columns; None for all.
        session: whose executors will read it.
        queries: those that read it.
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
        """Remove the folder."""
        if self._server is not None:
            self._server.close()
        self._owned.close()

    def hold(self, scanned: Scanned, keys: Sequence[str]) -> HeldTable:
        """Write the table beside its place: a load that is refused afterwards is never seen."""
        schema = pa.schema([(field.name, spark_arrow_type(field.type)) for field in scanned.schema])
        loaded = [scanned.cast(schema) if schema != scanned.schema else scanned]
        del scanned
        made = MappedTable.of(loaded.pop(), keys, self._owned.path / f"{next(self._numbers):012d}.new")
        pa.default_memory_pool().release_unused()
        return made

    def swap(self, held: HeldTable) -> None:
        """Give the new file its name, and remove the one before."""
        assert isinstance(held, MappedTable)  # noqa: S101 - made by hold
        folder = self._owned.path
        before = versions(folder)
        held.path.rename(held.path.with_suffix(_TABLE))
        for outdated in [*before, *folder.glob("*.new")]:
            outdated.unlink(missing_ok=True)
        gc.collect()

    def fail(self, error: Exception) -> None:
        """Leave the error where the table was."""
        folder = self._owned.path
        # A full disk may be what failed. Then the readers find no table, and an error that knows less.
        with contextlib.suppress(OSError):
            unfinished = folder / f"{_FAILED}.unfinished"
            unfinished.write_text(str(error), encoding="utf-8")
            unfinished.rename(folder / _FAILED)
        for outdated in versions(folder):
            outdated.unlink(missing_ok=True)

    def watermark_ms(self) -> int | None:
        """The last watermark of the streaming queries that read it."""
        return self._queries.watermark_ms()


def spark_arrow_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type in which Spark exchanges a column, so that no reader has to convert it."""
    spark_type = from_arrow_type(arrow_type, prefer_timestamp_ntz=True)
    return to_arrow_type(spark_type)


def served(session: SparkSession, newest: Callable[[], Path]) -> FileServer | None:
    """What hands the newest file out to executors on other machines; None where there are none."""
    if session.sparkContext.master.partition("[")[0] == "local":
        return None
    conf = session.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return FileServer(newest, host, conf.get("spark.driver.bindAddress") or host)


def found_path(name: str, folder: Path, server: ServerAddress | None, suffix: str) -> Path:
    """The newest version of a file of a table: in the driver's folder, or as a copy from its server."""
    if server is None or folder.is_dir():
        return newest_path(name, folder, suffix)
    # Spark removes this folder with the executor.
    copies = Path(os.environ["SPARK_LOCAL_DIRS"].split(",")[0]) / f"millpond-{folder.name}"
    return fetched(name, server, copies, suffix)


def newest_path(name: str, folder: Path, suffix: str = _TABLE) -> Path:
    """The newest version of a file of a table in the driver's folder.

    Raises:
        UnavailableError: there is none, or a reload failed and readers are to fail with it.
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
    """The whole files of a table, oldest first."""
    return sorted(folder.glob(f"*{suffix}"))
