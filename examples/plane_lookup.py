"""Looks up planes in an SQLite table with `millpond.lookup`, and caches the rows.

The absence of a plane in the table is cached too.

    python examples/plane_lookup.py
"""

import sqlite3
import tempfile
from pathlib import Path

from millpond.lookup import LookupTable, SqlLookup

PLANES = [("N101", 1999, "A320"), ("N102", 2004, "B738")]
FLIGHTS = ["N101", "N102", "N101", "N999", "N999"]


def planes_table(file: Path) -> LookupTable:
    """Fill a database with planes, and declare the lookup table over it."""
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE planes (tailnum TEXT, year INTEGER, model TEXT)")
        database.executemany("INSERT INTO planes VALUES (?, ?, ?)", PLANES)
    database.close()
    return LookupTable(
        "planes",
        SqlLookup(f"sqlite:///{file}", "planes", keys=["tailnum"], columns=["year", "model"]),
        {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 10_000},
    )


def models(table: LookupTable, tailnums: list[str]) -> list[str | None]:
    """Return the model of each plane, or None for a plane that the table does not have."""
    with table.open() as lookup:
        found = [lookup.lookup((tailnum,)) for tailnum in tailnums]
    return [rows[0][1] if rows else None for rows in found]


def main() -> None:
    """Look up the planes of some flights, and print how often the database was queried."""
    with tempfile.TemporaryDirectory() as folder:
        table = planes_table(Path(folder) / "shop.db")
        print(models(table, FLIGHTS))
        stats = table.stats()
        print(f"the database was asked for {stats.miss_count} of {stats.hit_count + stats.miss_count} planes")


if __name__ == "__main__":
    main()
