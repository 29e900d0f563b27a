"""No password, token or signature that a user gives is shown: not in a repr, an error with its causes, or a log."""

import logging
import pickle
import traceback

import pyarrow as pa
import pytest

from millpond.errors import MillpondError
from millpond.kv import AsyncRedisStore, RedisStore, open_store
from millpond.lookup import FileScan, HttpLookup, HttpScan, LookupTable, RedisLookup, SqlLookup
from millpond.lookup.sources.delta import DeltaScan
from millpond.masking import masked
from millpond.serving.client import AsyncFetchClient, FetchClient
from millpond.spark.lookup.copies import fetched
from millpond.spark.lookup.files import Published
from millpond.spark.lookup.tls import server_context
from millpond.spark.lookup.tls_server import ServerAddress
from millpond.state import StateReader
from millpond.state.checkpoint.savepoint import Savepoint
from millpond.state.checkpoint.storage.files import FileStorage
from millpond.state.checkpoint.storage.folder import Folder

SECRET = "hunter2-Zq7x9_secret"  # noqa: S105 - it is what is looked for
KEY = pa.schema([("code", pa.string())])
ROW = pa.schema([("gate", pa.int64())])
NOWHERE = "127.0.0.1:1"
"""Where nobody listens."""
CERTIFICATE = server_context()[1]


def _sql(url):
    return lambda: SqlLookup(url, "gates", ["code"], ["gate"], timeout_ms=500)


def _asked(lookup):
    lookup.open()
    return lookup.lookup(("JFK",))


HEADERS = {"Authorization": f"Bearer {SECRET}"}
MADE = {
    "a lookup over HTTP": (
        lambda: HttpLookup(f"http://ada:{SECRET}@{NOWHERE}/{{code}}?token={SECRET}", KEY, ROW, headers=HEADERS),
        _asked,
    ),
    "a lookup over HTTP with a token as user": (
        lambda: HttpLookup(f"http://{SECRET}@{NOWHERE}/{{code}}?sig={SECRET}", KEY, ROW, headers=HEADERS),
        _asked,
    ),
    "a lookup over HTTP without its key": (lambda: HttpLookup(f"http://a:{SECRET}@host/x", KEY, ROW), None),
    "a lookup over HTTP with another server": (
        lambda: HttpLookup(f"http://a:{SECRET}@h/{{code}}", KEY, ROW, batch_url=f"http://b:{SECRET}@i/"),
        None,
    ),
    "a lookup over HTTP of a wrong port": (lambda: HttpLookup(f"http://a:{SECRET}@h:x/{{code}}", KEY, ROW), None),
    "a lookup over no HTTP": (lambda: HttpLookup(f"ftp://a:{SECRET}@h/{{code}}", KEY, ROW), None),
    "a scan over HTTP": (
        lambda: HttpScan(f"http://ada:{SECRET}@{NOWHERE}/?api_key={SECRET}", KEY, ROW, headers=HEADERS),
        lambda scan: scan.scan(),
    ),
    "a lookup in Redis": (lambda: RedisLookup(f"redis://ada:{SECRET}@{NOWHERE}", "gate:{code}", KEY, ROW), _asked),
    "a lookup in PostgreSQL": (_sql(f"postgresql://ada:{SECRET}@{NOWHERE}/shop?sslpassword={SECRET}"), _asked),
    "a lookup in PostgreSQL of a wrong URL": (
        _sql(f"postgresql://ada:{SECRET}@h:port/shop?nopassword={SECRET}"),
        _asked,
    ),
    "a lookup in MySQL": (_sql(f"mysql+pymysql://ada:{SECRET}@{NOWHERE}/shop"), _asked),
    "a lookup in a database of a wrong URL": (_sql(f"mysql+pymysql//ada:{SECRET}@h"), _asked),
    "a lookup in a database without a driver": (_sql(f"nonsense://ada:{SECRET}@h/x"), _asked),
    "a file in a bucket": (lambda: FileScan(f"s3://AKIA:{SECRET}@bucket/planes.parquet?nonsense=1", ["code"]), None),
    "a file of no format": (lambda: FileScan(f"s3://AKIA:{SECRET}@bucket/planes", ["code"]), None),
    "a file that is not there": (lambda: FileScan(f"/nowhere/planes.csv?token={SECRET}", ["code"]), None),
    "a Delta table": (
        lambda: DeltaScan(f"/nowhere/planes?sig={SECRET}", ["code"], storage_options={"aws_secret_access_key": SECRET}),
        None,
    ),
    "a store": (lambda: open_store(f"redis://ada:{SECRET}@{NOWHERE}?retry_ms=1"), lambda store: store.datasets()),
    "a store of no scheme": (lambda: open_store(f"redsi://ada:{SECRET}@host"), None),
    "a store of half a host": (lambda: open_store(f"redis://ada:{SECRET}@[half"), None),
    "a store of a wrong option": (lambda: open_store(f"lmdb:///x?sync=perhaps&token={SECRET}"), None),
    "a store in memory with a name": (lambda: open_store(f"memory://a:{SECRET}@x"), None),
    "a Redis store": (lambda: RedisStore(f"rediss://ada:{SECRET}@{NOWHERE}"), None),
    "a Redis store for asyncio": (lambda: AsyncRedisStore(f"rediss://ada:{SECRET}@{NOWHERE}"), None),
    "a Redis store of many servers": (lambda: RedisStore(f"redis://ada:{SECRET}@one:1,two:2"), None),
    "a folder in a bucket": (lambda: Folder(f"s3://AKIA:{SECRET}@bucket/state?nonsense=1"), None),
    "a folder in Hadoop": (lambda: Folder(f"hdfs://ada:{SECRET}@host:1/state"), None),
    "a folder of no scheme": (lambda: Folder(f"nonsense://ada:{SECRET}@host/state"), None),
    "a checkpoint": (lambda: FileStorage(f"nonsense://ada:{SECRET}@host/state", shard=0), None),
    "a savepoint": (lambda: Savepoint.open(f"nonsense://ada:{SECRET}@host/state"), None),
    "state that is read": (lambda: StateReader(f"nonsense://ada:{SECRET}@host/state"), None),
    "a client": (
        lambda: FetchClient(f"http://ada:{SECRET}@{NOWHERE}", api_key=SECRET, timeout_ms=200),
        lambda client: client.fetch("route", {"origin": "EWR"}),
    ),
    "a client of no URL": (lambda: FetchClient(f"ftp://ada:{SECRET}@host", api_key=SECRET), None),
    "a client of a wrong port": (lambda: FetchClient(f"http://ada:{SECRET}@host:x", api_key=SECRET), None),
    "a client for asyncio": (lambda: AsyncFetchClient(f"http://ada:{SECRET}@{NOWHERE}", api_key=SECRET), None),
    "where a full table is": (
        lambda: Published("gates", None, ServerAddress("127.0.0.1", 1, SECRET, CERTIFICATE)),
        None,
    ),
}


def _told(make, use, log, tmp_path):
    """All that can be read about a thing."""
    told = []
    try:
        thing = make()
        told += [repr(thing), str(thing), f"{thing!r:>10}", repr([thing])]
        if use is not None:
            use(thing)
            told.append("no error")
    except MillpondError as error:
        told += [repr(error), *traceback.format_exception(error), *map(str, error.args)]
        told += traceback.format_exception(pickle.loads(pickle.dumps(error)))
    return "\n".join([*told, log.text])


@pytest.mark.parametrize("name", MADE)
def test_a_secret_is_nowhere_in_what_is_told_of(name, caplog, tmp_path, capfd):
    caplog.set_level(logging.DEBUG)
    make, use = MADE[name]
    told = _told(make, use, caplog, tmp_path)
    if use is not None:
        assert "no error" not in told
    # Lines of this file are in a traceback; they name the secret, and do not have it.
    assert SECRET not in told
    out, err = capfd.readouterr()
    assert SECRET not in out + err


def test_a_full_table_that_cannot_be_fetched_tells_no_token(tmp_path):
    with pytest.raises(MillpondError) as told:
        fetched("gates", ServerAddress("127.0.0.1", 1, SECRET, CERTIFICATE), tmp_path / "copies", ".table")
    assert SECRET not in "".join(traceback.format_exception(told.value))


def test_a_lookup_table_tells_no_secret_of_its_source_in_its_plan_or_metrics():
    source = HttpLookup(f"http://ada:{SECRET}@{NOWHERE}/{{code}}?token={SECRET}", KEY, ROW, headers=HEADERS)
    heard = []

    class Recorder:
        def __getattr__(self, name):
            return lambda *args, **named: heard.append((name, args, named))

    table = LookupTable(
        "gates", source, {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 9}, recorder=Recorder()
    )
    with table.open() as opened, pytest.raises(MillpondError) as error:
        opened.lookup(("JFK",))
    assert SECRET not in "".join(traceback.format_exception(error.value))
    assert SECRET not in repr((table, opened, table.stats(), heard))


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ada:{}@db/shop",
        "redis://:{}@host",
        "https://{}@host/x",
        "https://ada:a/b?{}@host/x",
        "host=db password={} user=ada",
        "host=db password='{} x' user=ada",
        "Driver={{x}};UID=ada;PWD={{{};1}};Server=h",
        "https://a/b?X-Amz-Signature={}&x=1",
        "https://a/b?sv=1&sig={}",
        "https://a/b?access_token={}#y",
        "Authorization: Bearer {}",
        "{{'Authorization': 'Basic {}'}}",
        '{{"aws_secret_access_key": "{}"}}',
        "fs.azure.account.key=1 account_key={}",
    ],
)
def test_every_form_of_a_secret_is_masked(text):
    shown = masked(text.format(SECRET))
    assert SECRET not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        "redis://host:6379/0?prefix=shop",
        "lmdb:///var/lib/kv?sync=false",
        "s3://bucket/a@b/planes.parquet?region=eu",
        "abfss://container@account.dfs.core.windows.net/planes",
        "http://[::1]:8765/v1",
        "key column 'code': expected int64, got 'x'",
        "/var/lib/key=5/part-0.parquet",
    ],
)
def test_what_is_no_secret_stays(text):
    assert masked(text) == text
