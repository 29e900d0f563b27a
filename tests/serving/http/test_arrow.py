"""Arrow in and out: typed columns, and what a hostile stream is refused for."""

import http.client
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from millpond.errors import DataError
from millpond.features import Aggregation, Field, GroupBy
from millpond.kv import MemoryStore
from millpond.serving import Fetcher, FetchRequest, Limits, http_app, running_server
from millpond.serving.http.asgi import ARROW_MEDIA_TYPE as MEDIA_TYPE
from millpond.serving.http.bodies.arrow_bodies import read_table, requests_of, table_of, write_table

from .answering import EVERY_TYPE, ROUTE, TYPED

KEYS = pa.table({"origin": ["EWR", "JFK", None], "carrier": pa.array(["UA", None, "B6"])})
ROW = {
    "a_boolean": True,
    "an_int": 1,
    "a_long": 2**40,
    "a_float": 0.5,
    "a_double": 1e300,
    "a_string": "é",
    "a_binary": b"\x00\xff",
    "a_date": date(2013, 1, 31),
    "a_timestamp": datetime(2013, 1, 31, 12, 30, tzinfo=UTC),
    "a_decimal": Decimal("12.50"),
}


def post(url, path, body, content_type, accept):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request("POST", path, body, {"Content-Type": content_type, "Accept": accept})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, response.headers["Content-Type"], content


def test_a_table_of_keys_gives_a_table_of_features(url):
    status, kind, content = post(url, "/v1/fetch/route?features=count_1h", write_table(KEYS), MEDIA_TYPE, MEDIA_TYPE)
    assert (status, kind) == (200, MEDIA_TYPE)
    assert pa.ipc.open_stream(content).read_all() == pa.table({"count_1h": pa.array([3, None, None], pa.int64())})


def test_a_table_of_keys_gives_json_to_who_asks_for_it(url, fetcher):
    table = KEYS.append_column("at", pa.array([5, 6, 7]))
    status, kind, content = post(url, "/v1/fetch/route?features=count_1h", write_table(table), MEDIA_TYPE, "*/*")
    assert (status, kind) == (200, "application/json")
    assert [result["at"] for result in json.loads(content)["results"]] == [5, 6, 7]
    assert [request.keys for request in fetcher.asked[0]] == KEYS.to_pylist()


def test_json_keys_give_a_table_with_all_types_as_they_are(url):
    body = {"requests": [{"keys": dict.fromkeys(EVERY_TYPE) | {"a_date": "2013-01-31", "a_decimal": "12.50"}, "at": 5}]}
    _, kind, content = post(url, "/v1/fetch/typed", json.dumps(body), "application/json", MEDIA_TYPE)
    table = pa.ipc.open_stream(content).read_all()
    assert kind == MEDIA_TYPE
    assert table.column("a_date").to_pylist() == [date(2013, 1, 31)]
    assert table.column("a_decimal").to_pylist() == [Decimal("12.50")]


def test_requests_survive_a_table_and_back():
    table = pa.table({name: [value, None] for name, value in ROW.items()} | {"amount": [2.5, None], "at": [7, None]})
    read = read_table(write_table(table), TYPED, Limits())
    requests = requests_of(read, TYPED, None)
    assert requests[0].keys == ROW
    assert (requests[0].context, requests[0].at) == ({"amount": 2.5}, 7)
    assert (requests[1].keys, requests[1].at) == (dict.fromkeys(ROW), None)
    assert table_of(requests, TYPED) == read


def test_a_map_of_the_context_is_a_dict_as_in_json():
    requests = [FetchRequest("typed", ROW, 5, {"rates": {1: 0.5}}, None), FetchRequest("typed", ROW, 6, None, None)]
    contexts = [request.context for request in requests_of(table_of(requests, TYPED), TYPED, None)]
    assert contexts == [{"rates": {1: 0.5}}, {"rates": None}]


@pytest.mark.parametrize("accept", ["application/json", MEDIA_TYPE])
def test_a_key_that_does_not_fit_its_type_is_the_callers_mistake_in_every_format(accept):
    bills = GroupBy(
        "bills", keys=(Field("amount", "decimal(5,2)"),), aggregations=(Aggregation("count", windows=("1h",)),)
    )
    with running_server(http_app(Fetcher(MemoryStore(), [bills]))) as url:
        for amount in ("1.234", "12345678", "NaN"):
            body = json.dumps({"requests": [{"keys": {"amount": "1.25"}}, {"keys": {"amount": amount}}]})
            status, _, content = post(url, "/v1/fetch/bills", body, "application/json", accept)
            assert (status, json.loads(content)["error"]["code"]) == (400, "bad_request"), amount
            assert "'amount'" in json.loads(content)["error"]["message"]


def test_a_column_of_a_near_type_is_converted_and_of_another_refused():
    near = pa.table(
        {
            "origin": pa.array(["EWR"]).dictionary_encode(),
            "carrier": pa.array(["UA"], pa.large_string()),
        }
    )
    assert read_table(write_table(near), ROUTE, Limits()).to_pylist() == [{"origin": "EWR", "carrier": "UA"}]
    with pytest.raises(DataError, match="column 'origin' is of type int64, expected string"):
        read_table(write_table(pa.table({"origin": [1], "carrier": ["UA"]})), ROUTE, Limits())
    wide = pa.table({name: [value] for name, value in ROW.items()} | {"an_int": pa.array([2**40])})
    with pytest.raises(DataError, match="column 'an_int' has a value that is no int32"):
        read_table(write_table(wide), TYPED, Limits())


@pytest.mark.parametrize(
    "table",
    [
        KEYS.drop_columns("origin"),
        KEYS.append_column("gate", pa.array(["A", "B", "C"])),
        pa.Table.from_arrays([KEYS["origin"], KEYS["carrier"], KEYS["origin"]], ["origin", "carrier", "origin"]),
    ],
)
def test_columns_that_are_missing_unknown_or_double_are_refused(table):
    with pytest.raises(DataError, match="the columns of a fetch of 'route' are the keys"):
        read_table(write_table(table), ROUTE, Limits())


def test_more_rows_than_a_call_may_have_are_refused_before_they_are_read():
    nulls = pa.table({"origin": pa.nulls(10_000_000), "carrier": pa.nulls(10_000_000)})
    body = write_table(nulls)
    assert len(body) < 1_000
    with pytest.raises(DataError, match="over 1000 rows"):
        read_table(body, ROUTE, Limits())
    dictionary = pa.table({"origin": pa.array([str(n) for n in range(2_000)]).dictionary_encode()[:1]})
    with pytest.raises(DataError, match="over 1000 rows"):
        read_table(write_table(dictionary), ROUTE, Limits())


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_streams_are_refused(compression):
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, KEYS.schema, options=options) as writer:
        writer.write_table(KEYS)
    with pytest.raises(DataError, match="compressed"):
        read_table(sink.getvalue(), ROUTE, Limits())


@pytest.mark.parametrize("body", [b"", b"hello", b"\xff\xff\xff\xff\x10\x00\x00\x00", b"\xff" * 64])
def test_what_is_no_arrow_stream_is_refused(body, url):
    with pytest.raises(DataError, match="no Arrow IPC stream"):
        read_table(body, ROUTE, Limits())
    status, _, content = post(url, "/v1/fetch/route", body, MEDIA_TYPE, MEDIA_TYPE)
    assert (status, json.loads(content)["error"]["code"]) == (400, "bad_request")


def test_altered_streams_are_read_or_refused_and_nothing_else():
    body = write_table(KEYS)
    for place in range(len(body)):
        for change in (0xFF, 0x01, 0x80):
            altered = bytearray(body)
            altered[place] ^= change
            try:
                table = read_table(bytes(altered), ROUTE, Limits())
            except DataError:
                continue
            assert table.num_rows <= 1_000


@pytest.mark.parametrize(
    "query", ["features", "features=a&features=b", "columns=a", "features=" + ",".join("abcdefghijk")]
)
def test_a_query_string_that_names_no_features_is_refused(url, query):
    status, _, content = post(url, f"/v1/fetch/route?{query}", write_table(KEYS), MEDIA_TYPE, MEDIA_TYPE)
    assert (status, json.loads(content)["error"]["code"]) == (400, "bad_request")


def test_an_arrow_answer_has_no_room_for_explanations(url):
    body = json.dumps({"requests": [{"keys": {"origin": "EWR", "carrier": "UA"}}], "explain": True})
    status, _, content = post(url, "/v1/fetch/route", body, "application/json", MEDIA_TYPE)
    assert (status, "explain" in json.loads(content)["error"]["message"]) == (400, True)
