"""Whatever a full cache is loaded from, it gives the same table: one suite over all scans."""

import json
import pickle
from contextlib import closing, contextmanager

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
import pytest
import sqlalchemy

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.kv import LmdbStore, Put
from millpond.lookup import (
    DeltaScan,
    FileScan,
    HttpScan,
    IcebergScan,
    KvLookup,
    LookupTable,
    RedisLookup,
    SqlLookup,
    TableScan,
    write_kv_table,
)

from .json_server import json_server

TABLE = pa.table(
    {
        "code": pa.array(["007", "EWR", None, "007"], pa.string()),
        "hour": pa.array([1, 2, 3, 1], pa.int64()),
        "temp": pa.array([1.5, None, 3.5, 4.5], pa.float64()),
        "sky": pa.array(["clear", "rain", "fog", None], pa.string()),
    }
)
FOUND = {("007", 1): [(1.5, "clear"), (4.5, None)], ("EWR", 2): [(None, "rain")], ("JFK", 1): []}
KEYS, COLUMNS = ["code", "hour"], ["temp", "sky"]


class Place:
    """Where a table lies, of a kind: `write` replaces it, `scan` declares it, `lose` makes it unreadable."""

    def __init__(self, folder):
        self.folder = folder

    def lose(self):
        import shutil

        path = self.folder / self.name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class Files(Place):
    def __init__(self, folder, name, write):
        super().__init__(folder)
        self.name = name
        self._write = write

    def write(self, table):
        self._write(table, self.folder / self.name)

    def scan(self, columns=COLUMNS):
        types = {"code": pa.string()} if self.name.endswith("csv") else None
        return FileScan(self.folder / self.name, KEYS, columns, types=types)


class Parts(Place):
    """A folder of files."""

    name = "weather"

    def write(self, table):
        (self.folder / self.name).mkdir(exist_ok=True)
        for part, rows in enumerate((table.slice(0, 2), table.slice(2))):
            pa.parquet.write_table(rows, self.folder / self.name / f"{part}.parquet")

    def scan(self, columns=COLUMNS):
        return FileScan(self.folder / self.name, KEYS, columns, format="parquet")


class Arrow(Place):
    def write(self, table):
        self._table = table

    def scan(self, columns=COLUMNS):
        return TableScan(self._read, KEYS, columns)

    def lose(self):
        self._table = None

    def _read(self):
        if self._table is None:
            raise UnavailableError("lost")
        return self._table


class Delta(Place):
    name = "delta"

    def write(self, table):
        import deltalake

        deltalake.write_deltalake(str(self.folder / self.name), table, mode="overwrite", schema_mode="overwrite")

    def scan(self, columns=COLUMNS):
        return DeltaScan(str(self.folder / self.name), KEYS, columns)


class Iceberg(Place):
    def __init__(self, folder):
        super().__init__(folder)
        self._properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }

    def write(self, table):
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("test", **self._properties)
        catalog.create_namespace_if_not_exists("flights")
        if catalog.table_exists("flights.weather"):
            catalog.drop_table("flights.weather")
        catalog.create_table("flights.weather", table.schema).append(table)

    def scan(self, columns=COLUMNS):
        return IcebergScan("test", "flights.weather", KEYS, columns, properties=self._properties)

    def lose(self):
        import shutil

        shutil.rmtree(self.folder / "warehouse")


class Sql(Place):
    def __init__(self, folder, url):
        super().__init__(folder)
        self._url = url

    def write(self, table):
        engine = sqlalchemy.create_engine(self._url)
        types = {pa.string(): "varchar(9)", pa.int64(): "integer", pa.float64(): "double precision"}
        columns = ", ".join(f"{field.name} {types[field.type]}" for field in table.schema)
        with engine.begin() as connection:
            connection.exec_driver_sql("drop table if exists scanned")
            connection.exec_driver_sql(f"create table scanned ({columns})")
            values = ", ".join(f":{name}" for name in table.column_names)
            if table.num_rows:
                connection.execute(sqlalchemy.text(f"insert into scanned values ({values})"), table.to_pylist())  # noqa: S608
        engine.dispose()

    def scan(self, columns=COLUMNS):
        return SqlLookup(self._url, "scanned", KEYS, columns)

    def lose(self):
        engine = sqlalchemy.create_engine(self._url)
        with engine.begin() as connection:
            connection.exec_driver_sql("drop table scanned")
        engine.dispose()


class Http(Place):
    def __init__(self, folder, server):
        super().__init__(folder)
        self._server = server

    def write(self, table):
        self._server.answers["GET", "/weather"] = 200, {"rows": table.to_pylist()}

    def scan(self, columns=COLUMNS):
        schema = pa.schema([TABLE.schema.field(name) for name in columns])
        keys = pa.schema([TABLE.schema.field(name) for name in KEYS])
        return HttpScan(f"{self._server.url}/weather", keys, schema, rows=_rows)

    def lose(self):
        self._server.answers["GET", "/weather"] = 503, "down"


class Redis(Place):
    def __init__(self, folder, url):
        import redis

        super().__init__(folder)
        self._url = url
        self._client = redis.Redis.from_url(url)
        self._client.flushdb()

    def write(self, table):
        self._client.flushdb()
        found = {}
        for row in table.to_pylist():
            if row["code"] is not None:
                found.setdefault(f"weather:{row['code']}:{row['hour']}", []).append(row)
        for name, rows in found.items():
            self._client.set(name, json.dumps(rows))

    def scan(self, columns=COLUMNS):
        keys, rows = (pa.schema([TABLE.schema.field(name) for name in names]) for names in (KEYS, columns))
        return RedisLookup(self._url, "weather:{code}:{hour}", keys, rows, value="json")

    def lose(self):
        self._client.hset("weather:JFK:7", "temp", 1.0)


class Kv(Place):
    """Columns that are not wanted are stored, too."""

    name = "kv"

    def write(self, table):
        with closing(LmdbStore(self.folder / self.name)) as store:
            store.drop("weather")
            write_kv_table(store, "weather", table, KEYS)

    def scan(self, columns=COLUMNS):
        keys, rows = (pa.schema([TABLE.schema.field(name) for name in names]) for names in (KEYS, columns))
        return KvLookup(LmdbStore(self.folder / self.name), "weather", keys, rows)

    def lose(self):
        with closing(LmdbStore(self.folder / self.name)) as store:
            store.put_many("weather", [Put(b"not of ours", b"")])


def _rows(body):
    return body["rows"]


def _write_arrow(table, path):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


FILES = {
    "weather.parquet": pa.parquet.write_table,
    "weather.csv": pa.csv.write_csv,
    "weather.arrow": _write_arrow,
    "weather.feather": pa.feather.write_feather,
    "weather.orc": pa.orc.write_table,
}
KINDS = ["arrow", *FILES, "parts", "delta", "iceberg", "sqlite", "postgresql", "mariadb", "http", "redis", "kv"]


@contextmanager
def _place(kind, folder, request):
    if kind == "http":
        with json_server() as server:
            yield Http(folder, server)
    elif kind == "redis":
        yield Redis(folder, request.getfixturevalue("redis_url"))
    elif kind in FILES:
        yield Files(folder, kind, FILES[kind])
    elif kind in ("sqlite", "postgresql", "mariadb"):
        yield Sql(folder, f"sqlite:///{folder}/t.db" if kind == "sqlite" else request.getfixturevalue(kind))
    else:
        yield {"arrow": Arrow, "parts": Parts, "delta": Delta, "iceberg": Iceberg, "kv": Kv}[kind](folder)


@pytest.fixture(params=KINDS)
def place(request, tmp_path):
    with _place(request.param, tmp_path, request) as place:
        place.write(TABLE)
        yield place


def opened(scan):
    return LookupTable("weather", scan, {"lookup.cache": "FULL", "lookup.max-retries": 0}).open()


def found(lookup, keys=tuple(FOUND)):
    return {key: sorted(rows, key=repr) for key, rows in lookup.lookup_many(keys).items()}


def test_every_row_is_found_by_its_key_and_a_null_key_by_none(place):
    with opened(place.scan()) as lookup:
        assert found(lookup) == FOUND
        assert lookup.lookup((None, 3)) == []
        assert lookup.stats().num_cached_record == 2


def test_the_declared_columns_have_their_types(place):
    scan = place.scan()
    assert scan.key_schema == pa.schema([("code", pa.string()), ("hour", pa.int64())])
    assert scan.row_schema == pa.schema([("temp", pa.float64()), ("sky", pa.string())])
    table = scan.scan()
    assert {field.name: field.type for field in table.schema} == {field.name: field.type for field in TABLE.schema}


def test_a_reload_reads_what_is_there_now(place):
    with opened(place.scan()) as lookup:
        place.write(pa.table({"code": ["JFK"], "hour": [1], "temp": [7.5], "sky": ["new"]}))
        lookup.reload()
        assert found(lookup) == {("007", 1): [], ("EWR", 2): [], ("JFK", 1): [(7.5, "new")]}


def test_a_source_that_is_lost_keeps_the_last_good_table(place):
    with opened(place.scan()) as lookup:
        place.lose()
        with pytest.warns(UserWarning, match="goes on with the last good one"):
            lookup.reload()
        assert found(lookup) == FOUND
        assert lookup.stats().num_load_failure == 1


def test_a_source_that_is_lost_at_the_start_is_an_error_of_ours(place):
    scan = place.scan()
    place.lose()
    with pytest.raises((UnavailableError, DataError, OptionError)):
        opened(scan)


def test_a_column_that_has_gone_is_named(place):
    with opened(place.scan()) as lookup:
        place.write(TABLE.drop_columns(["sky"]))
        with pytest.warns(UserWarning, match="sky"):
            lookup.reload()
        assert found(lookup) == FOUND


def test_a_table_that_has_lost_all_rows_is_taken_for_a_failure(place):
    with opened(place.scan()) as lookup:
        place.write(TABLE.slice(0, 0))
        with pytest.warns(UserWarning, match=r"no rows where there were 2 keys|types"):
            lookup.reload()
        assert found(lookup) == FOUND


@pytest.mark.parametrize(
    "where",
    [
        [("temp", ">", 2.0)],
        [("sky", "!=", "rain"), ("hour", "in", [1, 2])],
        [("sky", "not in", ["clear"])],
        [("code", "=", "EWR"), ("hour", "<=", 2)],
    ],
)
def test_fewer_columns_and_rows_are_what_picking_them_afterwards_gives(place, where):
    narrow = LookupTable("weather", place.scan(), {"lookup.cache": "FULL"}).select(["sky"], where)
    assert narrow.row_schema.names == ["sky"]
    names = [*KEYS, *COLUMNS]
    with narrow, narrow.open() as lookup:
        assert set(lookup.current().table.column_names) == {*KEYS, "sky"}
        for key, rows in FOUND.items():
            named = [dict(zip(names, (*key, *row), strict=True)) for row in rows]
            kept = [(row["sky"],) for row in named if all(_holds(row[column], *rest) for column, *rest in where)]
            assert sorted(lookup.lookup(key), key=repr) == sorted(kept, key=repr)


def _holds(value, word, wanted):
    if value is None:
        return False
    checks = {
        "=": lambda: value == wanted,
        "!=": lambda: value != wanted,
        ">": lambda: value > wanted,
        "<=": lambda: value <= wanted,
        "in": lambda: value in wanted,
        "not in": lambda: value not in wanted,
    }
    return checks[word]()


def test_a_scan_travels_to_another_process(place):
    with opened(pickle.loads(pickle.dumps(place.scan()))) as lookup:
        assert found(lookup) == FOUND


def test_a_column_of_csv_is_read_as_the_type_that_was_declared(tmp_path):
    (tmp_path / "zip.csv").write_text("zip,city\n00501,Holtsville\n")
    guessed = FileScan(tmp_path / "zip.csv", ["zip"])
    assert guessed.key_schema.field("zip").type == pa.int64()
    declared = FileScan(tmp_path / "zip.csv", ["zip"], types={"zip": pa.string()})
    with opened(declared) as lookup:
        assert lookup.lookup(("00501",)) == [("Holtsville",)]


def test_a_file_of_an_unknown_format_or_of_another_is_refused(tmp_path):
    path = tmp_path / "weather.parquet"
    path.write_text("no parquet")
    with pytest.raises((DataError, UnavailableError), match=r"weather\.parquet"):
        FileScan(path, ["code"])
    with pytest.raises(OptionError, match=r"arrow, csv, orc, parquet"):
        FileScan(tmp_path / "weather.xlsx", ["code"])


def test_a_missing_delta_table_and_a_missing_iceberg_table_are_named(tmp_path):
    with pytest.raises(UnavailableError, match="nowhere"):
        DeltaScan(str(tmp_path / "nowhere"), ["code"])
    place = Iceberg(tmp_path)
    place.write(TABLE)
    with pytest.raises(OptionError, match=r"flights\.rain"):
        IcebergScan("test", "flights.rain", ["code"], properties=place._properties)
