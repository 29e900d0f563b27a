"""What the stream looks up: planes by tail number, weather by airport and hour.

Beside the first hop of the demo's data path. Planes lie in a SQL database and are asked for a micro-batch
at a time through a partial cache, too small for every aircraft that flew, as in a job of a real size;
an aircraft that the database does not have is remembered as absent. Weather is small and is held whole.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.demo.workdir import publish
from millpond.lookup import FileScan, LookupTable, SqlLookup

PLANES_CACHED = 3_000
"""Rows in each worker's cache of planes; 4,043 aircraft flew in the year."""


def write_planes(folder: Path, planes: pa.Table) -> None:
    """Put the planes into a SQLite database with one table `planes`, keyed by tail number.

    Raises:
        UnavailableError: the disk is full, or does not let the file be written.
    """
    columns = ", ".join(f"{f.name} {'TEXT' if pa.types.is_string(f.type) else 'INTEGER'}" for f in planes.schema)
    marks = ", ".join("?" * planes.num_columns)
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"CREATE TABLE planes ({columns}, PRIMARY KEY (tailnum))")
        rows = zip(*(column.to_pylist() for column in planes.columns), strict=True)
        database.executemany(f"INSERT INTO planes VALUES ({marks})", rows)  # noqa: S608 -- question marks alone
        database.commit()
        content = database.serialize()
    publish(folder / "planes.sqlite", lambda hidden: hidden.write_bytes(content))


def write_weather(folder: Path, weather: pa.Table) -> None:
    """Put the weather into a Parquet file.

    Raises:
        UnavailableError: the disk is full, or does not let the file be written.
    """
    publish(folder / "weather.parquet", lambda hidden: pq.write_table(weather, hidden))


@contextmanager
def lookup_tables(
    folder: Path, planes_cached: int = PLANES_CACHED, *, hit_rate_curve: bool = False
) -> Iterator[dict[str, LookupTable]]:
    """The two tables over what `write_planes` and `write_weather` wrote; closed at the end, with their counts kept."""
    planes = LookupTable(
        "planes",
        SqlLookup(f"sqlite:///{folder / 'planes.sqlite'}", "planes", keys=["tailnum"], columns=["seats"]),
        {
            "lookup.cache": "PARTIAL",
            "lookup.partial-cache.max-rows": planes_cached,
            "lookup.partial-cache.hit-rate-curve": hit_rate_curve,
        },
    )
    weather = LookupTable(
        "weather",
        FileScan(folder / "weather.parquet", keys=["origin", "hour_ms"], columns=["visib"]),
        {"lookup.cache": "FULL"},
    )
    with planes, weather:
        yield {"planes": planes, "weather": weather}
