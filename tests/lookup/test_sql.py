"""A SQL table answers a batch with one query, and says clearly when it cannot."""

import pickle
from datetime import date, datetime

import pyarrow as pa
import pytest
import sqlalchemy

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup import LookupTable, SqlLookup
from millpond.lookup.sources import sqlalchemy_table


@pytest.fixture
def url(tmp_path):
    url = f"sqlite:///{tmp_path / 'planes.db'}"
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "create table planes (tailnum varchar(10), seat int, year integer, wing real, built date, "
            "seen datetime, shape blob2)"
        )
        connection.exec_driver_sql(
            "insert into planes values ('N1', 1, 1999, 1.5, '1999-01-02', '2013-01-01 05:00:00', null), "
            "('N1', 2, 1999, null, null, null, null), ('N2', 1, null, 2.5, null, null, null)"
        )
        connection.exec_driver_sql("create table folded (code text collate nocase, value integer)")
        connection.exec_driver_sql("insert into folded values ('jfk', 1)")
    engine.dispose()
    return url


@pytest.fixture
def queries(monkeypatch):
    seen = []
    engine = sqlalchemy.engine.Engine
    sqlalchemy.event.listen(engine, "before_cursor_execute", listener := lambda *args: seen.append(args[2]))
    yield seen
    sqlalchemy.event.remove(engine, "before_cursor_execute", listener)


def test_a_batch_is_one_query(url, queries):
    with SqlLookup(url, "planes", ["tailnum"], ["year", "wing"]) as planes:
        queries.clear()
        found = planes.lookup_many([("N1",), ("N9",), ("N2",)])
    assert found == {("N1",): [(1999, 1.5), (1999, None)], ("N9",): [], ("N2",): [(None, 2.5)]}
    assert len(queries) == 1


def test_a_key_of_several_columns_is_matched_as_one(url):
    with SqlLookup(url, "planes", ["tailnum", "seat"], ["tailnum", "wing"]) as planes:
        assert planes.lookup_many([("N1", 2), ("N2", 2)]) == {("N1", 2): [("N1", None)], ("N2", 2): []}


def test_more_keys_than_a_query_takes_parameters_are_asked_in_pieces(url, queries):
    with SqlLookup(url, "planes", ["tailnum", "seat"], ["year"]) as planes:
        queries.clear()
        found = planes.lookup_many([(f"X{key}", 1) for key in range(20_000)] + [("N2", 1)])
    assert found["N2", 1] == [(None,)]
    assert len(queries) == 2


def test_types_come_from_the_database(url):
    planes = SqlLookup(url, "planes", ["tailnum"], ["year", "wing", "built", "seen"])
    assert planes.key_schema == pa.schema([("tailnum", pa.string())])
    assert planes.row_schema.types == [pa.int64(), pa.float64(), pa.date32(), pa.timestamp("us")]
    assert planes.lookup(("N1",))[0] == (1999, 1.5, date(1999, 1, 2), datetime(2013, 1, 1, 5))  # noqa: DTZ001 - as the database has it


def test_a_table_is_scanned_whole_for_a_full_cache(url):
    table = LookupTable("planes", SqlLookup(url, "planes", ["tailnum"], ["year"]), {"lookup.cache": "FULL"})
    with table.open() as planes:
        assert planes.lookup_many([("N1",), ("N9",)]) == {("N1",): [(1999,), (1999,)], ("N9",): []}


def test_an_empty_table_scans_to_its_columns(url):
    with sqlalchemy.create_engine(url).begin() as connection:
        connection.exec_driver_sql("delete from planes")
    assert SqlLookup(url, "planes", ["tailnum"], ["year"]).scan().schema.names == ["tailnum", "year"]


def test_a_source_travels_without_its_connection(url):
    planes = SqlLookup(url, "planes", ["tailnum"], ["year"])
    planes.open()
    assert pickle.loads(pickle.dumps(planes)).lookup(("N2",)) == [(None,)]


def test_a_missing_table_or_column_is_named_with_what_is_there(url):
    with pytest.raises(OptionError, match="'plains'"):
        SqlLookup(url, "plains", ["tailnum"], ["year"]).open()
    with pytest.raises(OptionError, match=r"'planes'.*\['age'\].*tailnum, seat, year"):
        SqlLookup(url, "planes", ["tailnum"], ["age"]).open()


def test_a_column_without_an_arrow_type_and_a_key_that_is_a_fraction_are_refused(url):
    with pytest.raises(OptionError, match="'shape'"):
        _ = SqlLookup(url, "planes", ["tailnum"], ["shape"]).row_schema
    with pytest.raises(OptionError, match=r"'wing'.*exact equality"):
        _ = SqlLookup(url, "planes", ["wing"], ["year"]).key_schema


def test_a_database_that_compares_keys_otherwise_is_an_error_and_not_a_missing_row(url):
    with SqlLookup(url, "folded", ["code"], ["value"]) as folded, pytest.raises(DataError, match=r"'folded'.*'jfk'"):
        folded.lookup(("JFK",))


def test_a_database_that_cannot_be_reached_is_unavailable_and_its_password_is_not_told(tmp_path):
    source = SqlLookup(f"sqlite:///{tmp_path}/no/such/folder/x.db", "planes", ["tailnum"], ["year"])
    with pytest.raises(UnavailableError, match=r"x\.db.*did not answer"):
        source.open()


def test_a_table_dropped_in_the_middle_is_an_error_and_not_a_missing_row(url):
    with SqlLookup(url, "planes", ["tailnum"], ["year"]) as planes:
        with sqlalchemy.create_engine(url).begin() as connection:
            connection.exec_driver_sql("drop table planes")
        with pytest.raises(DataError, match=r"planes.*refused"):
            planes.lookup(("N1",))


def test_a_full_table_lets_go_of_its_connections_when_it_closes(url):
    source = SqlLookup(url, "planes", ["tailnum"], ["year"])
    with LookupTable("planes", source, {"lookup.cache": "FULL"}) as table:
        table.open()
        assert source._table._engine is not None
    assert source._table._engine is None
    assert source.scan().num_rows == 3
    source.close()


def test_a_scan_that_breaks_in_the_middle_gives_no_table(url, monkeypatch):
    # SQLite keeps any value in any column: the second row has no number where one was declared.
    with sqlalchemy.create_engine(url).begin() as connection:
        connection.exec_driver_sql("create table loose (code text, value integer)")
        connection.exec_driver_sql("insert into loose values ('a', 1), ('b', 'two')")
    monkeypatch.setattr(sqlalchemy_table, "_ROWS_A_FETCH", 1)
    with SqlLookup(url, "loose", ["code"], ["value"]) as loose, pytest.raises(DataError, match=r"'loose'.*two"):
        loose.scan()


def test_a_number_that_no_row_can_have_leaves_the_other_keys_their_rows(url):
    with SqlLookup(url, "planes", ["seat"], ["tailnum"]) as planes:
        assert planes.lookup_many([(1 << 70,), (2,)]) == {(1 << 70,): [], (2,): [("N1",)]}


def test_no_query_asks_whether_the_connection_lives(url, monkeypatch):
    pings = []
    monkeypatch.setattr(sqlalchemy.engine.default.DefaultDialect, "do_ping", lambda *_: pings.append(1) or True)
    with SqlLookup(url, "planes", ["tailnum"], ["year"]) as planes:
        assert planes.lookup(("N2",)) == planes.lookup(("N2",)) == [(None,)]
    assert pings == []
