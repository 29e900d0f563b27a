"""What is wrong with a call of the fetcher is raised, and named: keys, context, features, times."""

import asyncio
from datetime import UTC, datetime
from http.client import HTTPConnection

import msgspec
import pyarrow as pa
import pytest

from millpond.errors import DataError, OptionError
from millpond.features import DAY_MS, HOUR_MS, MARKER_ADDRESS, MINUTE_MS, GroupBy
from millpond.features.stored.rows import MAX_QUERY_MS
from millpond.serving import FetchClient, Fetcher, FetchRequest, http_app, running_server

from .world import BATCH_END_MS, EWR, NOON_MS, PLANE, PLANS, ROUTE


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda fetcher: fetcher.fetch("rout", EWR), OptionError, "did you mean 'route'"),
        (lambda fetcher: fetcher.fetch("route", {"origin": "EWR"}), DataError, "carrier"),
        (lambda fetcher: fetcher.fetch("route", {"origin": "EWR", "carrier": 7}), DataError, "carrier"),
        (lambda fetcher: fetcher.fetch("flight", {"origin": "EWR", "carrier": "UA"}), DataError, "price|plane"),
        (lambda fetcher: fetcher.fetch("flight", PLANE), DataError, "'price'"),
        (lambda fetcher: fetcher.fetch("flight", PLANE, context={"price": "x"}), DataError, "'price'"),
        (lambda fetcher: fetcher.fetch("flight", PLANE, context={"prize": 1.0}), DataError, "did you mean 'price'"),
        (lambda fetcher: fetcher.fetch("route", ("EWR", "UA")), DataError, "such as {'origin': 'EWR', 'carr"),
        (lambda fetcher: fetcher.fetch("route", ["EWR", "UA"]), DataError, "such as {'origin': 'EWR', 'carr"),
        (lambda fetcher: fetcher.fetch("route", "EWR"), DataError, "keys are 'EWR'; expected a mapping"),
        (lambda fetcher: fetcher.fetch("flight", ("EWR",), context={"price": 1.0}), DataError, "expected a mapp"),
        (lambda fetcher: fetcher.fetch(EWR, "route"), OptionError, "target is {.* target comes first"),
        (lambda fetcher: fetcher.fetch_many("route"), DataError, "requests is 'route'; expected a list"),
        (lambda fetcher: fetcher.fetch_many([EWR]), DataError, r"requests\[0\] is {.*expected a list of FetchRequest"),
        (lambda fetcher: fetcher.fetch_many([FetchRequest("route", EWR), EWR]), DataError, r"requests\[1\] is {"),
        (lambda fetcher: fetcher.fetch_many([FetchRequest(EWR, "route")]), DataError, r"requests\[0\].name is {"),
        (lambda fetcher: fetcher.fetch_many(FetchRequest("route", EWR)), DataError, "requests is FetchRequest"),
        (lambda fetcher: fetcher.fetch_many([FetchRequest("route", ("EWR", "UA"))] * 2), DataError, "expected a mapp"),
        (lambda fetcher: asyncio.run(fetcher.fetch_many_async([EWR])), DataError, r"requests\[0\] is {"),
        (lambda fetcher: fetcher.fetch("route", EWR, features="count_1h"), OptionError, r"such as \['count_1h'\]"),
        (lambda fetcher: fetcher.fetch_many([FetchRequest("route", EWR, features="count_1h")]), OptionError, "such as"),
        (lambda fetcher: fetcher.prepare("route", "count_1h"), OptionError, "features is 'count_1h'; expected a list"),
        (lambda fetcher: fetcher.fetch("route", EWR, features=7), OptionError, "features is 7; expected a list of na"),
        (lambda fetcher: fetcher.fetch("route", EWR, context=7), DataError, "context is 7; expected a mapping"),
        (lambda fetcher: fetcher.fetch_table("route", [EWR]), DataError, "type list; expected a pyarrow.Tabl"),
        (lambda fetcher: fetcher.fetch("route", EWR, 1.5), DataError, "at is 1.5"),
        (lambda fetcher: fetcher.fetch("route", EWR, True), DataError, "at is True"),
        (lambda fetcher: fetcher.fetch("route", EWR, datetime(2026, 1, 1, tzinfo=UTC)), DataError, "timestamp"),
        (lambda fetcher: fetcher.fetch("route", EWR, NOON_MS * 10**6), DataError, "nanoseconds|microseconds"),
        (lambda fetcher: fetcher.fetch("route", EWR, 1 << 44), DataError, "year 2499.*microseconds"),
        (lambda fetcher: fetcher.fetch("flight", PLANE, 1 << 44, context={"price": 1.0}), DataError, "microseconds"),
        (lambda fetcher: fetcher.fetch("route", EWR, 1_795_651_200_000_000_000), DataError, "nanoseconds"),
        (lambda fetcher: fetcher.fetch_many([FetchRequest("route", EWR, 1 << 44)] * 2), DataError, "microseconds"),
        (lambda fetcher: fetcher.fetch_table("route", pa.table({**{k: [v] for k, v in EWR.items()}, "at": [1 << 44]})),
         DataError, "microseconds"),
        (lambda fetcher: fetcher.fetch_table("route", pa.table({k: [v] for k, v in EWR.items()}), at=1.5),
         DataError, "at is 1.5"),
        (lambda fetcher: fetcher.fetch("route", EWR, features=["count_1hh"]), OptionError, "did you mean 'count_1h'"),
        (lambda fetcher: fetcher.fetch("route", EWR, features=[]), OptionError, "at least one"),
        (lambda fetcher: fetcher.fetch(GroupBy("route", ROUTE.keys, ROUTE.inputs, ROUTE.aggregations[:1]), EWR),
         OptionError, "another definition"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_call_is_raised_and_named(fetcher, ask, error, said):
    for _ in range(2):
        with pytest.raises(error, match=said):
            ask(fetcher)


def test_a_time_before_the_batch_end_is_refused(fetcher):
    answer = fetcher.fetch("route", EWR, BATCH_END_MS - 1)
    assert "before the batch end" in answer.errors["route"]
    assert set(answer.states.values()) == {"unavailable"}


def test_a_time_in_seconds_is_told_so(fetcher):
    problem = fetcher.fetch("route", EWR, NOON_MS // 1000).errors["route"]
    assert problem.endswith("This looks like seconds: multiply it by 1000.")


def test_a_time_in_microseconds_is_refused_over_http_in_json_and_arrow(world):
    keys = pa.table({name: [value] for name, value in EWR.items()})
    with (
        Fetcher(world[0], PLANS, now=lambda: NOON_MS) as fetcher,
        running_server(http_app(fetcher)) as url,
        FetchClient(url) as client,
    ):
        with pytest.raises(DataError, match=r"at is 17592186044416, beyond the year 2499.*microseconds"):
            client.fetch_table("route", keys.append_column("at", pa.array([1 << 44])))
        body = msgspec.json.encode({"requests": [{"keys": EWR, "at": 1 << 44}]})
        connection = HTTPConnection(url.removeprefix("http://"))
        connection.request("POST", "/v1/fetch/route", body, {"content-type": "application/json"})
        refused = connection.getresponse()
        assert refused.status == 400
        assert b"microseconds" in refused.read()
        connection.close()


def test_no_range_of_tiles_up_to_a_query_reaches_the_marker():
    last = MAX_QUERY_MS - 1
    ends_ms = [-(-last // tile_ms) * tile_ms for tile_ms in (1, MINUTE_MS, HOUR_MS, DAY_MS, 366 * DAY_MS)]
    assert max(ends_ms) < MARKER_ADDRESS
    assert datetime.fromtimestamp(MAX_QUERY_MS / 1000, UTC) == datetime(2500, 1, 1, tzinfo=UTC)
