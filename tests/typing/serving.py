"""What type checkers make of `millpond.serving`."""

from collections.abc import Mapping
from typing import Any, Literal, assert_type

from millpond.features import GroupBy, Join
from millpond.kv import MemoryStore
from millpond.serving import Fetcher, FetchRequest, FetchResponse, HttpApp, Limits, http_app, running_server


def an_answer_has_features_states_and_errors(group_by: GroupBy, join: Join) -> None:
    fetcher = Fetcher(MemoryStore(), [group_by, join])
    answer = fetcher.fetch("route", {"origin": "EWR"}, at=0)
    assert_type(answer, FetchResponse)
    features: Mapping[str, Any] = answer.features
    errors: Mapping[str, str] = answer.errors
    assert_type(answer.state("count_7d"), Literal["present", "null", "unavailable"])
    assert features is not errors
    assert_type(fetcher.fetch_many([FetchRequest("route", {"origin": "EWR"})]), list[FetchResponse])


def a_fetcher_is_served_over_http(fetcher: Fetcher) -> None:
    app = http_app(fetcher, limits=Limits(drain_ms=1_000))
    assert_type(app, HttpApp)
    with running_server(app) as url:
        assert_type(url, str)


def what_is_no_store_or_target_is_an_error() -> None:
    Fetcher({}, [])  # type: ignore[arg-type]
    Fetcher(MemoryStore(), ["route"])  # type: ignore[list-item]
