"""What SQL sources do when something is wrong: a typed error that says what, and never a missing row."""

import psycopg
import pymysql.cursors
import pytest
import sqlalchemy

from benchmarks import database_servers
from millpond.errors import DataError, MissingDependencyError, UnavailableError
from millpond.lookup import (
    DefaultLookupCache,
    PartialCachingLookup,
    Retries,
    SqlLookup,
)


@pytest.fixture(params=["postgresql", "mariadb"])
def gates_url(request):
    url = request.getfixturevalue(request.param)
    execute(
        url,
        "drop table if exists gates",
        "create table gates (code varchar(9), gate integer, seen timestamp null, shape char(3))",
        "insert into gates values ('JFK', 1, '2013-01-01 05:00:00', 'ab')",
    )
    return url


def execute(url, *statements):
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def closed_port():
    return database_servers.free_port()


def test_a_slow_database_ends_in_a_time_out_that_is_tried_again(gates_url):
    """A table that another transaction has locked, as a slow one."""
    is_postgresql = gates_url.startswith("postgresql")
    source = SqlLookup(gates_url, "gates", ["code"], ["gate"], timeout_ms=500)
    engine = sqlalchemy.create_engine(gates_url)
    with source, engine.connect() as locker:
        locker.exec_driver_sql(
            "lock table gates in access exclusive mode" if is_postgresql else "lock tables gates write"
        )
        with pytest.raises(UnavailableError, match="did not answer"):
            source.lookup(("JFK",))
        locker.exec_driver_sql("rollback" if is_postgresql else "unlock tables")
        assert source.lookup(("JFK",)) == [(1,)]
    engine.dispose()


def test_connections_that_the_server_closed_are_opened_again(gates_url):
    with SqlLookup(gates_url, "gates", ["code"], ["gate"]) as source:
        assert source.lookup(("JFK",)) == [(1,)]
        if gates_url.startswith("postgresql"):
            execute(
                gates_url, "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and "
                "backend_type = 'client backend'"
            )  # fmt: skip
        else:
            engine = sqlalchemy.create_engine(gates_url)
            with engine.connect() as killer:
                for process in killer.exec_driver_sql("show processlist").all():
                    if process[0] != killer.exec_driver_sql("select connection_id()").scalar():
                        killer.exec_driver_sql(f"kill {process[0]}")
            engine.dispose()
        assert source.lookup(("JFK",)) == [(1,)]


def test_a_server_that_is_down_at_the_start_is_unavailable(gates_url):
    url = sqlalchemy.engine.make_url(gates_url).set(port=closed_port())
    source = SqlLookup(url.render_as_string(hide_password=False), "gates", ["code"], ["gate"], timeout_ms=2_000)
    with pytest.raises(UnavailableError, match="gates"):
        source.open()


def test_a_column_dropped_in_the_middle_is_refused_without_a_retry(gates_url):
    waits = []
    source = SqlLookup(gates_url, "gates", ["code"], ["gate"])
    with PartialCachingLookup(source, DefaultLookupCache(max_rows=9), retries=Retries(3, sleep=waits.append)) as gates:
        gates.lookup(("JFK",))
        execute(gates_url, "alter table gates drop column gate")
        with pytest.raises(DataError, match="refused the lookup"):
            gates.lookup(("LGA",))
    assert waits == []


def test_padding_and_collations_that_change_keys_are_errors(gates_url):
    with SqlLookup(gates_url, "gates", ["shape"], ["gate"]) as source:
        if gates_url.startswith("postgresql"):
            with pytest.raises(DataError, match=r"'ab '.*not asked for in this form"):
                source.lookup(("ab",))
        else:
            with pytest.raises(DataError, match=r"'ab'.*not asked for in this form"):
                source.lookup(("AB",))


def test_a_driver_that_is_not_installed_is_named_with_its_install_line():
    with pytest.raises(MissingDependencyError, match=r"postgresql\+pg8000.*pip install"):
        SqlLookup("postgresql+pg8000://localhost/x", "gates", ["code"], ["gate"]).open()


def test_one_query_a_batch_reaches_a_real_server(gates_url, monkeypatch):
    seen = []
    for cursor in (psycopg.Cursor, pymysql.cursors.Cursor):
        plain = cursor.execute
        monkeypatch.setattr(
            cursor, "execute", lambda *args, plain=plain, **named: seen.append(args[1]) or plain(*args, **named)
        )
    with SqlLookup(gates_url, "gates", ["code"], ["gate"]) as source:
        source.lookup(("JFK",))
        seen.clear()
        answer = source.lookup_many([(f"X{key}",) for key in range(5_000)] + [("JFK",)])
    assert len(seen) == 1
    assert answer["JFK",] == [(1,)]
