"""The fetcher at work: every request in-process and over HTTP, in the order of their moments.

Fourth stage of the demo's data path. For each flight after the batch end its route and its aircraft
are asked for together, as a model would. Requests come in rounds, so that the picture can show how the
cache of batch IRs fills. The rounds over HTTP go to a server of this process on the loopback, and
their answers are checked like the others.
"""

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from millpond.demo import oracle
from millpond.demo.check import mismatches, requests
from millpond.demo.definitions import AIRCRAFT, ROUTE
from millpond.demo.report import CacheCount, Measure
from millpond.errors import UnavailableError
from millpond.features import compile_group_by
from millpond.kv import LmdbStore
from millpond.serving import FetchClient, Fetcher, FetchRequest, FetchResponse, http_app, running_server

CACHE_SIZE = 2_000
"""Entries of each GroupBy's batch IRs: more than the aircraft and routes of two days."""

REQUESTS_PER_ROUND = 600
_MOST_LISTED = 100
_GROUP_BYS = {group_by.name: group_by for group_by in (ROUTE, AIRCRAFT)}

Ask = Callable[[Sequence[FetchRequest]], Sequence[FetchResponse]]
"""One round: requests in, their responses out, in the same order."""

Answered = dict[str, dict[int, dict[str, Any]]]
"""The features by GroupBy and request id."""


class Facts(msgspec.Struct):
    """What came of asking and checking.

    `requests` were asked in-process and again over HTTP; `checked` are the features of all of them, each
    counted once. `mismatches` lists the first hundred in words. `example` is the body of a request.
    """

    requests: int
    checked: int
    example: str
    mismatch_count: int
    mismatches: list[str]
    measures: list[Measure]


def ask_and_check(
    store_path: Path,
    events: pa.Table,
    batch_end_ms: int,
    clock: Callable[[], float],
    on_step: Callable[[Measure], None],
) -> Facts:
    """Ask for every flight after the batch end, both ways, and check every feature of every answer.

    Raises:
        UnavailableError: the fetcher had no answer to a request; with its reason.
    """
    asked = {name: requests(events, batch_end_ms, _keys(name)) for name in _GROUP_BYS}
    questions = _in_order(asked)
    measures: list[Measure] = []

    def step(measure: Measure) -> None:
        measures.append(measure)
        on_step(measure)

    with closing(LmdbStore(store_path)) as store:
        fetcher = open_fetcher(store)
        in_process = _ask_all("serve", fetcher.fetch_many, questions, fetcher, clock, step)
        with running_server(http_app(fetcher)) as url, FetchClient(url) as client:
            over_http = _ask_all("http", client.fetch_many, questions, fetcher, clock, step)
    wrong = []
    for name, table in asked.items():
        expected = oracle.expected(table, events, _keys(name))
        wrong += mismatches(name, expected, in_process[name]) + mismatches(name, expected, over_http[name])
    return Facts(
        requests=len(questions),
        checked=sum(len(features) for answered in in_process.values() for features in answered.values()),
        example=_example(questions),
        mismatch_count=len(wrong),
        mismatches=list(map(str, wrong[:_MOST_LISTED])),
        measures=measures,
    )


def serve_until_stopped(store_path: Path, port: int, say: Callable[[str], None]) -> None:
    """Answer over HTTP until the process is interrupted.

    Raises:
        UnavailableError: the port is taken.
    """
    with closing(LmdbStore(store_path)) as store, running_server(http_app(open_fetcher(store)), port=port) as url:
        say(url)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


def _keys(name: str) -> list[str]:
    return [field.name for field in _GROUP_BYS[name].keys]


def _example(questions: Sequence[tuple[int, FetchRequest]]) -> str:
    """What a reader can send to /v1/fetch/route."""
    request = next(request for _, request in reversed(questions) if request.name == ROUTE.name)
    return json.dumps({"requests": [{"keys": dict(request.keys), "at": request.at}]})


def open_fetcher(store: LmdbStore) -> Fetcher:
    """A fetcher of both GroupBys, with their batch IRs cached."""
    return Fetcher(store, [compile_group_by(g) for g in _GROUP_BYS.values()], fetcher_cache_size=CACHE_SIZE)


def _in_order(asked: dict[str, pa.Table]) -> list[tuple[int, FetchRequest]]:
    """All requests by moment, each with its id; what one flight asks comes together."""
    questions = [
        (row["request_id"], FetchRequest(name, {key: row[key] for key in _keys(name)}, row["query_ms"]))
        for name, table in asked.items()
        for row in table.to_pylist()
    ]
    return sorted(questions, key=lambda question: (question[1].at or 0, question[0]))


def _ask_all(
    stage: str,
    ask: Ask,
    questions: Sequence[tuple[int, FetchRequest]],
    fetcher: Fetcher,
    clock: Callable[[], float],
    step: Callable[[Measure], None],
) -> Answered:
    answers: Answered = {name: {} for name in _GROUP_BYS}
    for start in range(0, len(questions), REQUESTS_PER_ROUND):
        round_ = questions[start : start + REQUESTS_PER_ROUND]
        before, began = _cache_counts(fetcher), clock()
        responses = ask([request for _, request in round_])
        seconds, after = clock() - began, _cache_counts(fetcher)
        for (request_id, request), response in zip(round_, responses, strict=True):
            if response.errors:
                raise UnavailableError(f"{response.name} of {dict(request.keys)} at {request.at}: {response.errors}")
            answers[request.name][request_id] = response.features
        step(Measure(stage, seconds, len(round_), {name: after[name] - before[name] for name in after}))
    return answers


def _cache_counts(fetcher: Fetcher) -> dict[str, CacheCount]:
    caches = fetcher.stats().caches
    return {f"{name}_batch_irs": CacheCount(stats.hits, stats.misses) for name, stats in caches.items()}
