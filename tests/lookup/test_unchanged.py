"""A reload is skipped while the source says that nothing has changed, and only then."""

import os
import sqlite3
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.errors import DataError, OptionError
from millpond.lookup import (
    CacheMetricGroup,
    DeltaScan,
    FileScan,
    FullCachingLookup,
    HttpScan,
    IcebergScan,
    LookupTable,
    Retries,
    SqlLookup,
    TableScan,
)
from millpond.metrics import MemoryRecorder

KEYS, ROWS = pa.schema([("code", pa.string())]), pa.schema([("gate", pa.int64())])


def gates(*numbers):
    return pa.table({"code": [f"G{number}" for number in numbers], "gate": list(numbers)})


def reloads(scan, change):
    """How often it was loaded after each step, and what is found at the end."""
    recorder = MemoryRecorder()
    with FullCachingLookup(scan, None, CacheMetricGroup("gates", recorder), Retries(0)) as lookup:
        loads = []
        for step in (lookup.stats, lookup.reload, change, lookup.reload, lookup.reload):
            step()
            loads.append(lookup.stats().load_count)
        skipped = recorder.total("millpond_lookup_loads_total", name="gates", result="unchanged")
        assert skipped + loads[-1] == 4
        return loads, lookup.lookup(("G7",))


def test_files_are_read_again_when_one_was_written_added_or_replaced(tmp_path):
    def write(name, *numbers):
        pq.write_table(gates(*numbers), tmp_path / name)

    write("a.parquet", 1)
    scan = FileScan(tmp_path, ["code"], format="parquet")
    assert reloads(scan, lambda: write("b.parquet", 7)) == ([1, 1, 1, 2, 2], [(7,)])

    def replace():
        before = (tmp_path / "b.parquet").stat()
        write("new", 8)
        os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (tmp_path / "new").rename(tmp_path / "b.parquet")

    assert reloads(FileScan(tmp_path, ["code"], format="parquet"), replace) == ([1, 1, 1, 2, 2], [])


def test_a_database_is_read_again_when_the_column_of_changes_or_the_number_of_rows_changes(tmp_path):
    path = tmp_path / "gates.db"

    def execute(*statements):
        with sqlite3.connect(path) as connection:
            for statement in statements:
                connection.execute(statement)

    execute("create table gates (code text, gate integer, changed integer)", "insert into gates values ('G7', 7, 1)")
    url = f"sqlite:///{path}"

    def scan(**given):
        return SqlLookup(url, "gates", ["code"], ["gate"], **given)

    def update():
        execute("update gates set gate = 70, changed = changed + 1")

    def remove():
        execute("insert into gates values ('G8', 8, 1)")

    assert reloads(scan(changed_by="changed"), update) == ([1, 1, 1, 2, 2], [(70,)])
    assert reloads(scan(changed_by="changed"), remove)[0] == [1, 1, 1, 2, 2]
    assert reloads(scan(), update)[0] == [1, 2, 2, 3, 4]
    with pytest.raises(
        OptionError, match=r"'gates', changed_by: there is no column 'when'; it has code, gate, changed"
    ):
        reloads(scan(changed_by="when"), update)


def test_postgresql_is_read_again_when_the_column_of_changes_changes(postgresql):
    psycopg = pytest.importorskip("psycopg")

    def execute(*statements):
        with psycopg.connect(postgresql.replace("+psycopg", ""), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    execute(
        "drop table if exists changing",
        "create table changing (code text primary key, gate bigint, changed timestamptz default now())",
        "insert into changing values ('G7', 7)",
    )

    def scan(column):
        return SqlLookup(postgresql, "changing", ["code"], ["gate"], changed_by=column)

    update = "update changing set gate = 70, changed = clock_timestamp()"
    assert reloads(scan("changed"), lambda: execute(update)) == ([1, 1, 1, 2, 2], [(70,)])
    with pytest.raises(DataError, match=r"changing.*when"):
        reloads(scan("when"), lambda: None)


def test_delta_and_iceberg_are_read_again_at_a_new_version(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(tmp_path / "delta"), gates(1))
    append = [lambda: deltalake.write_deltalake(str(tmp_path / "delta"), gates(7), mode="append")]
    assert reloads(DeltaScan(str(tmp_path / "delta"), ["code"]), append[0]) == ([1, 1, 1, 2, 2], [(7,)])
    catalog = pytest.importorskip("pyiceberg.catalog")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}", "warehouse": f"file://{tmp_path}"}
    loaded = catalog.load_catalog("versions", **properties)
    loaded.create_namespace("airport")
    table = loaded.create_table("airport.gates", gates(1).schema)
    table.append(gates(1))
    scan = IcebergScan("versions", "airport.gates", ["code"], properties=properties)
    assert reloads(scan, lambda: table.append(gates(7))) == ([1, 1, 1, 2, 2], [(7,)])


@pytest.mark.parametrize("header", ["ETag", "Last-Modified", "weak", None])
def test_a_service_is_asked_again_when_its_etag_or_time_of_change_changes(header):
    state = {"version": 1, "got": 0}

    class Service(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(b"")

        def do_GET(self):
            state["got"] += 1
            self.answer(f'[{{"code": "G7", "gate": {state["version"]}}}]'.encode())

        def answer(self, body):
            self.send_response(200)
            if header == "weak":
                self.send_header("ETag", 'W/"always the same"')
            elif header is not None:
                version = state["version"]
                self.send_header(header, f'"{version}"' if header == "ETag" else formatdate(version, usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        scan = HttpScan(f"http://127.0.0.1:{server.server_address[1]}/gates", KEYS, ROWS)
        loads, found = reloads(scan, lambda: state.update(version=2))
        server.shutdown()
    assert found == [(2,)]
    assert loads == ([1, 1, 1, 2, 2] if header in ("ETag", "Last-Modified") else [1, 2, 2, 3, 4])
    assert state["got"] == loads[-1]


def test_a_table_is_loaded_whole_when_it_is_opened_again_and_a_narrowed_one_is_skipped_too(tmp_path):
    pq.write_table(gates(7), tmp_path / "a.parquet")
    table = LookupTable("gates", FileScan(tmp_path / "a.parquet", ["code"]), {"lookup.cache": "FULL"})
    narrow = table.select(["gate"], [("gate", ">", 5)])
    for _ in range(2):
        with narrow, narrow.open() as lookup:
            narrow.reload()
            assert lookup.lookup(("G7",)) == [(7,)]
    assert narrow.stats().load_count == 2
    assert reloads(TableScan(gates(7), ["code"]), lambda: None)[0] == [1, 2, 2, 3, 4]


def test_what_changes_during_a_scan_is_read_by_the_next_reload():
    class Changing(TableScan):
        """Its third version comes while the second is read."""

        def __init__(self):
            super().__init__(self.read, ["code"])

        number = 1

        def read(self):
            table = gates(self.number)
            self.number += self.number == 2
            return table

        def version(self):
            return self.number

    scan = Changing()
    with FullCachingLookup(scan, None) as lookup:
        scan.number = 2
        for expected in ("G2", "G3", "G3"):
            lookup.reload()
            assert lookup.lookup((expected,)) == [(int(expected[1:]),)]
        assert lookup.stats().load_count == 3
