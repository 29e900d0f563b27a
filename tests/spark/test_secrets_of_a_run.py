"""A stream that looks rows up in a database with a password: nothing that it prints, plans, counts or writes has it."""

import json
import traceback
from contextlib import suppress

import psycopg
import pytest
from pyspark.errors import StreamingQueryException

from benchmarks import database_servers
from millpond.lookup import LookupTable, SqlLookup
from millpond.metrics import PrometheusRecorder

pytestmark = pytest.mark.spark

SECRET = "hunter2-Zq7x9_of-a-database"  # noqa: S105 - it is what is looked for


@pytest.fixture(scope="module")
def url():
    with database_servers.postgresql() as url:
        # The server takes any password.
        yield url.replace("millpond@", f"millpond:{SECRET}@").replace("+psycopg", "")


@pytest.mark.parametrize("cache", ["PARTIAL", "FULL"])
def test_a_password_is_nowhere_in_what_a_stream_tells_and_writes(spark, url, tmp_path, capfd, caplog, recwarn, cache):
    from millpond.spark import lookup_join

    with psycopg.connect(url, autocommit=True) as database:
        database.execute("drop table if exists customers, others")
        database.execute(
            "create table customers as select n as customer, 'customer ' || n as name from generate_series(0, 9) n"
        )
    options = {"lookup.cache": cache, "lookup.max-retries": 0}
    options |= {"lookup.partial-cache.max-rows": 100} if cache == "PARTIAL" else {}
    recorder = PrometheusRecorder()
    events, told = tmp_path / "events", []
    events.mkdir()
    source = SqlLookup(url, "customers", ["customer"], ["name"])
    with LookupTable("customers", source, options, recorder=recorder) as table:
        joined = lookup_join(spark.readStream.schema("customer long").json(str(events)), table, on="customer")
        told += [repr(joined), joined._jdf.queryExecution().toString()]
        writer = joined.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start(str(tmp_path / "output"))
        try:
            (events / "1.json").write_text('{"customer": 1}\n{"customer": 77}\n')
            query.processAllAvailable()
            query.explain(extended=True)
            told += [json.dumps(json.loads(progress.json)) for progress in query.recentProgress]
            with psycopg.connect(url, autocommit=True) as database:
                database.execute("alter table customers rename to others")
            (events / "2.json").write_text('{"customer": 2}\n')
            table.reload()
            with suppress(StreamingQueryException):
                query.processAllAvailable()
            if query.exception() is not None:
                told += traceback.format_exception(query.exception())
        finally:
            query.stop()
        told += [repr((table, table.stats())), repr(recorder.families())]
    rows = spark.read.parquet(str(tmp_path / "output")).collect()
    assert {(row.customer, row.name) for row in rows} >= {(1, "customer 1"), (77, None)}
    told += [str(each.message) for each in recwarn]
    assert ("refused the lookup" if cache == "PARTIAL" else "could not be reloaded") in "\n".join(told)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not any(SECRET.encode() in each for each in written)
    out, err = capfd.readouterr()
    assert "MapInArrow lookup_" in out, "the plan is there"
    assert SECRET not in "\n".join([*told, out, err, caplog.text])
