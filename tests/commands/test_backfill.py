"""`millpond backfill` makes the table that `millpond upload --hop-table` goes on from."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

ROUTE = """
from millpond.features import Aggregation, Field, GroupBy
route = GroupBy("route", keys=(Field("origin", "string"),), aggregations=(Aggregation("count", windows=("7d",)),))
"""
DAY_MS = 86_400_000


def test_an_upload_goes_on_from_a_backfill(run, tmp_path):
    (tmp_path / "route.py").write_text(ROUTE)
    pq.write_table(
        pa.table({"origin": ["EWR", "JFK", "EWR"], "time_ms": [1, DAY_MS, 2 * DAY_MS]}), tmp_path / "events.parquet"
    )
    table = f"route={tmp_path / 'events.parquet'}"
    shared = (tmp_path / "route.py", "--table", table, "--hop-table", tmp_path / "hops", "--json")
    found = run("backfill", *shared, "--from", "1970-01-01", "--to", "1970-01-03")
    assert (found["version"], found["end_ms"]) == (1, 2 * DAY_MS)
    assert [events for events, *_ in found["days"].values()] == [1, 1]
    info = run("upload", *shared, "--batch-end", "1970-01-04", "--store", f"lmdb://{tmp_path / 'kv'}")
    assert info["rows"] == 2
    assert sorted(path.name for path in (tmp_path / "hops").glob("manifest-*")) == [
        "manifest-00000001",
        "manifest-00000002",
    ]
