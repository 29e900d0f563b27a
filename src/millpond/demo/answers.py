"""The fetcher at work: every request in-process and over HTTP, in the order of their moments.

Fourth stage of the demo's data path. For each flight after the batch end the Join is asked for its route,
its aircraft and its airport, as a model would. The flights of one moment are asked for in one call,
in-process and then over HTTP from a server of this process on the loopback, and all answers are checked.
Rounds of some moments are measured together, so that the picture can show how the caches fill. All answers
are logged, for the check against the training set.
"""

import contextlib
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from millpond.demo.check import CONTEXT, KEYS, Answers, by_request, mismatches
from millpond.demo.definitions import FLIGHT
from millpond.demo.report import CacheCount, Measure, total_caches, total_counts
from millpond.errors import UnavailableError
from millpond.kv import KVStore, open_store
from millpond.serving import FetchClient, Fetcher, FetchRequest, FetchResponse, http_app, running_server
from millpond.serving.answers.answer_log import AnswerLog
from millpond.serving.counters import FetcherStats

REQUESTS_PER_ROUND = 100
"""A round is the requests of whole moments, at least so many."""

MOST_LISTED = 100
_COUNTED = (
    "kv_calls", "bytes_read", "batch_gets", "batch_gets_saved", "stream_gets", "tiles_read", "tiles_saved",
)  # fmt: skip

Ask = Callable[[Sequence[FetchRequest]], Sequence[FetchResponse]]
"""One call: requests in, their responses out, in the same order."""

Collected = dict[int, Mapping[str, Any]]
"""The features by request."""


class Facts(msgspec.Struct):
    """What came of asking and checking.

    `requests` were asked in-process and again over HTTP; `checked` are the features of all of them, each
    counted once. `mismatches` lists the first hundred in words. `example` is the body of a request; empty
    if there was none.
    """

    requests: int
    checked: int
    example: str
    mismatch_count: int
    mismatches: list[str]
    measures: list[Measure]


def ask_and_check(
    url: str,
    log_folder: Path,
    asked: pa.Table,
    expected: Answers,
    clock: Callable[[], float],
    on_step: Callable[[Measure], None],
) -> Facts:
    """Ask every request, both ways, and check every feature of every answer.

    Args:
        url: the store of the features.
        log_folder: where the answers are logged; what an earlier process left there is removed.
        asked: the requests, in the order of their moments.
        expected: the right answers.
        clock: seconds, monotonic.
        on_step: told of each round.

    Raises:
        UnavailableError: the fetcher had no answer to a request; with its reason.
    """
    measures: list[Measure] = []

    def step(measure: Measure) -> None:
        measures.append(measure)
        on_step(measure)

    questions = _questions(asked)
    shutil.rmtree(log_folder, ignore_errors=True)
    in_process: Collected = {}
    over_http: Collected = {}
    with contextlib.ExitStack() as opened:
        store = open_store(url)
        opened.enter_context(store)
        fetcher = opened.enter_context(open_fetcher(store, AnswerLog(log_folder, sample=1.0)))
        client = opened.enter_context(FetchClient(opened.enter_context(running_server(http_app(fetcher)))))
        for moments in _rounds(questions):
            calls = []
            for moment in moments:
                calls.append(_ask("serve", fetcher.fetch_many, moment, fetcher, clock, in_process))
                calls.append(_ask("http", client.fetch_many, moment, fetcher, clock, over_http))
            for stage in ("serve", "http"):
                step(_together(stage, [call for call in calls if call.stage == stage]))
    right = {request_id: expected[request_id] for request_id, _ in questions}
    wrong = mismatches("in-process", right, in_process) + mismatches("over HTTP", right, over_http)
    return Facts(
        requests=len(questions),
        checked=sum(len(features) for features in in_process.values()),
        example=_example(questions),
        mismatch_count=len(wrong),
        mismatches=list(map(str, wrong[:MOST_LISTED])),
        measures=measures,
    )


def serve_until_stopped(url: str, port: int, say: Callable[[str], None]) -> None:
    """Answer over HTTP until the process is interrupted.

    Raises:
        UnavailableError: the port is taken.
    """
    with open_store(url) as store, running_server(http_app(open_fetcher(store)), port=port) as served_at:
        say(served_at)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def open_fetcher(store: KVStore, log: AnswerLog | None = None) -> Fetcher:
    """A fetcher of the Join and of its GroupBys, with the caches that they declare."""
    return Fetcher(store, [FLIGHT], answer_log=log)


def _questions(asked: pa.Table) -> list[tuple[int, FetchRequest]]:
    return [
        (
            request_id,
            FetchRequest(FLIGHT.name, {k: row[k] for k in KEYS}, row["query_ms"], {c: row[c] for c in CONTEXT}),
        )
        for request_id, row in by_request(asked).items()
    ]


def _rounds(questions: Sequence[tuple[int, FetchRequest]]) -> Iterator[list[list[tuple[int, FetchRequest]]]]:
    """Give the questions by moment, and the moments in rounds."""
    round_: list[list[tuple[int, FetchRequest]]] = []
    for _, moment in itertools.groupby(questions, key=lambda question: question[1].at):
        round_.append(list(moment))
        if sum(map(len, round_)) >= REQUESTS_PER_ROUND:
            yield round_
            round_ = []
    if round_:
        yield round_


def _together(stage: str, calls: Sequence[Measure]) -> Measure:
    seconds, items = sum(call.seconds for call in calls), sum(call.items for call in calls)
    return Measure(stage, seconds, items, total_caches(calls), total_counts(calls))


def _example(questions: Sequence[tuple[int, FetchRequest]]) -> str:
    """What a reader can send to /v1/fetch/flight."""
    if not questions:
        return ""
    request = questions[-1][1]
    return json.dumps({"requests": [{"keys": request.keys, "at": request.at, "context": request.context}]})


def _ask(
    stage: str,
    ask: Ask,
    questions: Sequence[tuple[int, FetchRequest]],
    fetcher: Fetcher,
    clock: Callable[[], float],
    answers: Collected,
) -> Measure:
    """Ask for one moment, and put its answers among the others."""
    before, began = fetcher.stats(), clock()
    responses = ask([request for _, request in questions])
    seconds, after = clock() - began, fetcher.stats()
    for (request_id, request), response in zip(questions, responses, strict=True):
        if response.errors:
            raise UnavailableError(f"{response.name} of {dict(request.keys)} at {request.at}: {response.errors}")
        answers[request_id] = response.features
    return Measure(stage, seconds, len(questions), _cache_counts(before, after), _counts(before, after))


def _cache_counts(before: FetcherStats, after: FetcherStats) -> dict[str, CacheCount]:
    return {
        name.replace(".", "_"): CacheCount(stats.hits, stats.misses)
        - CacheCount(before.caches[name].hits, before.caches[name].misses)
        for name, stats in after.caches.items()
    }


def _counts(before: FetcherStats, after: FetcherStats) -> dict[str, int]:
    return {name: getattr(after, name) - getattr(before, name) for name in _COUNTED}
