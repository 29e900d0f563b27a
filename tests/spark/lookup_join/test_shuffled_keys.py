"""Joins whose keys are shuffled to the hosts that cache them."""

import pyarrow as pa
import pytest

from millpond.lookup import LookupTable
from millpond.spark import lookup_join
from tests.spark.lookup_join.tables import PARTIAL, counting_squares, rows_of

pytestmark = pytest.mark.spark


def test_keys_shuffled_to_their_hosts_are_loaded_once_whatever_workers_run(spark, tmp_path):
    calls = tmp_path / "calls"
    events = spark.range(0, 2000, 1, 4).selectExpr("id", "if(id % 100 = 7, null, id % 100) as number")
    with LookupTable("squares", counting_squares(calls), {**PARTIAL, "lookup.partial-cache.max-rows": 200}) as table:
        for _ in range(3):
            joined = lookup_join(events, table, on="number", columns=["square"], shuffle_by_key=True)
            assert joined.columns == ["id", "number", "square"]
            answer = rows_of(joined)
            expected = [(n, None, None) if n % 100 == 7 else (n, n % 100, (n % 100) ** 2) for n in range(2000)]
            assert answer == sorted(expected, key=repr)
        called = [line.split() for line in calls.read_text().splitlines()]
        assert sorted(int(number) for _, number in called) == [n for n in range(100) if n != 7]
        assert len({process for process, _ in called}) == 2
        stats = table.stats()
        assert stats.load_count == stats.miss_count == stats.num_cached_record == 99
        assert stats.num_cached_bytes > 0
        assert stats.num_load_failure == 0


def test_hot_keys_and_nulls_are_spread_over_all_partitions(spark, tmp_path):
    def sizes(batches):
        yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})

    partitions = int(spark.conf.get("spark.sql.shuffle.partitions"))
    hot = "case when id % 4 = 0 then null when id % 4 < 3 then 7 else id % 300 end as number"
    events = spark.range(0, 6_000, 1, 2).selectExpr("id", hot)
    with LookupTable(
        "squares", counting_squares(tmp_path / "calls"), {**PARTIAL, "lookup.partial-cache.max-rows": 999}
    ) as table:
        joined = lookup_join(events, table, on="number", columns=["square"], shuffle_by_key=True)
        expected = events.selectExpr("id", "number", "number * number as square")
        assert rows_of(joined) == rows_of(expected)
        found = [row.rows for row in joined.mapInArrow(sizes, "rows long").collect()]
        assert len(found) == partitions
        assert max(found) < 1.3 * 6_000 / partitions
        assert joined.columns == ["id", "number", "square"]


def test_a_cache_in_hosts_has_the_configured_size_in_an_executor(spark, tmp_path):
    events = spark.range(0, 1000, 1, 2).withColumnRenamed("id", "number")
    with LookupTable("squares", counting_squares(tmp_path / "calls"), PARTIAL) as table:
        assert lookup_join(events, table, on="number", shuffle_by_key=True).count() == 1000
        assert table.stats().num_cached_record == 100
