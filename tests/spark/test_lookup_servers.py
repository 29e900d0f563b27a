"""What befalls a real database in the middle of a stream that looks rows up in it."""

import itertools
import json
import threading
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from benchmarks import database_servers
from millpond.lookup import LookupTable, SqlLookup

pytestmark = pytest.mark.spark

PATIENT = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 1_000, "lookup.max-retries": 100}
NAMES = itertools.count()


@pytest.fixture(scope="module")
def folders():
    with ExitStack() as stack:
        yield lambda: stack.enter_context(database_servers.server_folder())


@pytest.fixture(scope="module")
def server(folders):
    server = database_servers.PostgresqlServer(folders())
    server.start()
    execute(
        server,
        "create table customers (customer bigint primary key, name text)",
        "insert into customers select n, 'customer ' || n from generate_series(0, 99) n",
    )
    yield server
    server.stop()


def execute(server, *statements):
    with connected(server) as connection:
        return [connection.execute(statement) for statement in statements][-1].statusmessage


def connected(server):
    return psycopg.connect(host="127.0.0.1", port=server.port, user="millpond", dbname="postgres", autocommit=True)


def url_of(*servers):
    return f"postgresql://millpond@{','.join(f'127.0.0.1:{server.port}' for server in servers)}/postgres"


@contextmanager
def stream_over(spark, tmp_path, source, options=PATIENT):
    """A stream joined with customers; what is yielded feeds it a batch of keys, and returns their names."""
    from millpond.spark import lookup_join

    events, name = tmp_path / "events", f"customers_{next(NAMES)}"
    events.mkdir()
    with LookupTable("customers", source, options) as table:
        stream = spark.readStream.schema("number long, customer long").json(str(events))
        joined = lookup_join(stream, table, on="customer")
        writer = joined.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path / "c"))
        query = writer.start()

        def feed(*keys):
            number = next(NAMES)
            lines = "\n".join(json.dumps({"number": number, "customer": key}) for key in keys)
            (tmp_path / "next.json").write_text(lines)
            (tmp_path / "next.json").rename(events / f"{number}.json")
            query.processAllAvailable()
            found = {row.customer: row[-1] for row in spark.table(name).filter(f"number = {number}").collect()}
            return [found[key] for key in keys]

        feed.stats = table.stats
        try:
            yield feed
        finally:
            query.stop()


def test_a_restart_between_batches_and_one_in_the_middle_of_a_batch_change_no_answer(spark, tmp_path, server):
    with stream_over(spark, tmp_path, SqlLookup(url_of(server), "customers", ["customer"], ["name"])) as feed:
        assert feed(1, 2) == ["customer 1", "customer 2"]
        server.stop()
        assert feed(1, 2) == ["customer 1", "customer 2"], "what is cached needs no server"
        server.start()
        assert feed(3, 999) == ["customer 3", None]
        server.stop()
        started = threading.Thread(target=server.start)
        started.start()
        try:
            assert feed(4, 5) == ["customer 4", "customer 5"]
        finally:
            started.join()
        assert feed.stats().num_load_failure == 0


def test_a_standby_that_is_only_read_takes_over(spark, tmp_path, server, folders):
    server.stop()
    standby = server.standby(folders())
    server.start()
    source = SqlLookup(url_of(server, standby), "customers", ["customer"], ["name"])
    with stream_over(spark, tmp_path, source) as feed:
        assert feed(1, 2) == ["customer 1", "customer 2"]
        try:
            standby.start()
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                execute(standby, "delete from customers")
            server.stop()
            assert feed(2, 3, 999) == ["customer 2", "customer 3", None]
            assert feed.stats().num_load_failure == 0
        finally:
            standby.stop()
            server.start()


def test_a_server_that_is_too_slow_is_asked_again_until_it_answers(spark, tmp_path, server):
    source = SqlLookup(url_of(server), "customers", ["customer"], ["name"], timeout_ms=300)
    with stream_over(spark, tmp_path, source) as feed, connected(server) as other, connected(server) as watcher:
        assert feed(1) == ["customer 1"]
        locked = threading.Event()

        def lock_until_a_second_try():
            waiting = (
                "select query_start from pg_stat_activity where wait_event_type = 'Lock' and query like '%customers%'"
            )
            with other.transaction():
                other.execute("lock table customers")
                locked.set()
                tries = set()
                while len(tries) < 2:
                    tries |= set(watcher.execute(waiting).fetchall())

        slow = threading.Thread(target=lock_until_a_second_try)
        slow.start()
        assert locked.wait(20)
        assert feed(2) == ["customer 2"]
        slow.join()
        assert feed.stats().load_count == 2


def test_a_column_that_changes_its_type_fails_the_stream_by_name_and_one_that_is_added_does_not(
    spark, tmp_path, server
):
    execute(server, "create table shops (customer bigint primary key, size integer)", "insert into shops values (1, 7)")
    source = SqlLookup(url_of(server), "shops", ["customer"], ["size"])
    with stream_over(spark, tmp_path, source) as feed:
        feed(2)
        execute(server, "alter table shops add column name text")
        feed(3)
        execute(server, "alter table shops alter column size type text")
        with pytest.raises(Exception, match=r"table 'shops', column 'size': its type was int64 .* has changed since"):
            feed(4)
