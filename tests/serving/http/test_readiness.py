"""How often the store is asked whether the service is ready."""

import asyncio

from millpond.errors import UnavailableError
from millpond.serving.http.readiness import FRESH_MS, Readiness

from .answering import Answering


class Slow(Answering):
    """Answers whether it is ready once it is let go."""

    def __init__(self):
        super().__init__()
        self.let_go = asyncio.Event()

    async def refresh_async(self):
        self.looks += 1
        await self.let_go.wait()
        if self.failure is not None:
            raise self.failure
        return {"route": self.batches["route"]}


def test_callers_who_gave_up_on_a_hanging_store_leave_one_look_behind():
    async def main():
        fetcher = Slow()
        readiness = Readiness(fetcher, lambda: 0)
        for _ in range(5):
            asking = asyncio.create_task(readiness.problem())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        fetcher.let_go.set()
        return await readiness.problem(), fetcher.looks

    assert asyncio.run(main()) == (None, 1)


def test_an_answer_is_given_again_for_a_while_and_then_looked_for_anew():
    async def main():
        now_ms = [0]
        fetcher = Slow()
        fetcher.let_go.set()
        readiness = Readiness(fetcher, lambda: now_ms[0])
        found = [await readiness.problem()]
        fetcher.failure = UnavailableError("the store is away")
        found.append(await readiness.problem())
        now_ms[0] = FRESH_MS
        found.append(await readiness.problem())
        return found, fetcher.looks

    assert asyncio.run(main()) == ([None, None, "the store is away"], 2)
