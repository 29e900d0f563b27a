"""Two calls of which one is enough: a failure never hides an answer that came at the same moment."""

import asyncio
from concurrent.futures import Future

import pytest

from millpond.serving import AsyncFetchClient, FetchClient
from millpond.serving.client.exchange import Answer
from millpond.serving.client.retries import Deadline

ANSWER = Answer(200, {}, b"{}", keeps_alive=True)
TIMES = 20
"""How often each case is tried: calls that end together come in any order."""


class Hedges:
    """An executor whose first call ends, with the second one's, once that is submitted."""

    def __init__(self, *outcomes):
        self.outcomes = outcomes
        self.calls = []

    def submit(self, *_):
        self.calls.append(Future())
        if len(self.calls) == len(self.outcomes):
            for call, outcome in zip(self.calls, self.outcomes, strict=True):
                call.set_exception(outcome) if isinstance(outcome, Exception) else call.set_result(outcome)
        return self.calls[-1]

    def shutdown(self, **_):
        pass


@pytest.mark.parametrize("outcomes", [(OSError("reset"), ANSWER), (ANSWER, OSError("reset"))], ids=["first", "second"])
def test_an_answer_counts_though_the_other_call_failed_at_the_same_moment(outcomes):
    for _ in range(TIMES):
        with FetchClient("http://localhost:1", hedge_after_ms=1) as client:
            client._hedges = Hedges(*outcomes)
            assert client._send(b"", Deadline(1_000, lambda: 0)) is ANSWER


def test_if_both_calls_fail_the_failure_is_raised():
    with FetchClient("http://localhost:1", hedge_after_ms=1) as client:
        client._hedges = Hedges(OSError("reset"), OSError("refused"))
        with pytest.raises(OSError, match=r"reset|refused"):
            client._send(b"", Deadline(1_000, lambda: 0))


def test_an_answer_on_an_event_loop_counts_though_the_other_call_failed_at_the_same_moment():
    async def ask(first_fails):
        both, asked = asyncio.Event(), []

        async def exchange(_):
            asked.append(1)
            fails = first_fails == (len(asked) == 1)
            if len(asked) == 2:
                both.set()
            await both.wait()
            if fails:
                raise OSError("reset")
            return ANSWER

        async with AsyncFetchClient("http://localhost:1", hedge_after_ms=1) as client:
            client._pool.exchange = exchange
            return await client._send(b"")

    for number in range(TIMES):
        assert asyncio.run(ask(number % 2 == 0)) is ANSWER
