"""One fetch as rounds of calls to the store: many keys, one `get_many` a round.

Place on the data path: between the fetcher and the reads of single keys. The rounds are a generator too,
so the blocking and the async fetcher differ in one line: how they wait.

All reads go forward together. What they ask for is sent in one call; whether a batch is still served is
asked once for each GroupBy. Reads that wait for another fetch's result wait last, when this fetch has
nothing left to read for others: so two fetches never wait for each other.

Where some servers of a store did not answer, the reads of what lies on them end with that error, and the
others go on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from millpond.errors import CorruptionError, UnavailableError
from millpond.features.answering import Layout
from millpond.kv import Get, PartlyReadError, TimedValue
from millpond.serving.closed_tiles import ClosedTiles
from millpond.serving.counters import Tally
from millpond.serving.hot_key import look_up, tail_get, take_tail
from millpond.serving.key_read import BatchGone, KeyData, KeyReading, Reads, read_key
from millpond.serving.served_group import Served, ServedGroup
from millpond.serving.serving_info import ServingInfos

Round = list[Get] | Future[Any]
Answers = list[list[TimedValue]] | PartlyReadError
"""The rows of each get of a round, or what is known of them if some servers did not answer."""

Rounds = Generator[Round, Answers, None]


class WantedKey:
    """One key of one GroupBy in one fetch, for all requests that ask for it.

    Attributes:
        data: what was read of it; None if `problem` tells why not, or no batch is served.
        problem: why nothing could be read.
    """

    __slots__ = ("data", "group", "key", "layout", "problem", "queries")

    def __init__(self, group: ServedGroup, layout: Layout, key: bytes, query_ms: int) -> None:
        self.group = group
        self.layout = layout
        self.key = key
        self.queries = [query_ms]
        self.data: KeyData | None = None
        self.problem: str | None = None

    def hot_reading(self, tally: Tally) -> KeyReading | None:
        """Give the short read of this key, or None if more than its tail must be read."""
        if len(self.queries) > 1:
            return None
        served = self.group.served
        closed = look_up(self.group, served, self.key, self.queries[0])
        return None if closed is None else self._read_tail(served, closed, tally)

    def _read_tail(self, served: Served, closed: ClosedTiles, tally: Tally) -> KeyReading:
        """Read the tail; take the long way if a closed tile was amended."""
        group, key, query_ms = self.group, self.key, self.queries[0]
        tally.stream_gets += 1
        tally.batch_gets_saved += closed.view.reads_batch
        (rows,) = yield Reads((tail_get(closed, key),))
        found = take_tail(group, served, key, query_ms, closed, rows)
        tally.rows += len(rows)
        tally.bytes += sum([len(row.value) for row in rows])
        if found is None:
            return (yield from read_key(group, self.layout, key, self.queries, tally))
        tally.tiles += len(rows)
        tally.tiles_saved += closed.tiles
        kept, tiles = found
        return KeyData(kept.landed, None, kept, tiles, kept.end_ms, kept.view, query_ms, "cache", "cache", len(rows))

    def reading(self, tally: Tally) -> KeyReading | None:
        """Give the read of this key, or None if no query can be answered."""
        landed = self.group.served.landed
        if landed is None:
            return None
        queries = self.queries
        if len(queries) > 1:
            queries = sorted(set(queries))
        if queries[0] < landed.batch_end_ms:
            queries = [query for query in queries if query >= landed.batch_end_ms]
            if not queries:
                return None
        return read_key(self.group, self.layout, self.key, queries, tally)


_Asking = tuple[WantedKey, KeyReading, Reads]


def rounds(wanted: Iterable[WantedKey], infos: ServingInfos, tally: Tally) -> Rounds:
    """Read all keys; yields the gets of each round, or a result of another fetch that is to be waited for."""
    active: list[_Asking] = []
    try:
        for one in wanted:
            reading = (one.hot_reading(tally) if one.group.is_hot else None) or one.reading(tally)
            if reading is not None:
                _step(active, one, reading, None)
        while active:
            asking = [item for item in active if item[2].flight is None]
            if not asking:
                one, reading, asked = active[0]
                if asked.flight is not None:
                    yield asked.flight
                del active[0]
                _step(active, one, reading, [])
                continue
            waiting = [item for item in active if item[2].flight is not None]
            gets = [get for _, _, asked in asking for get in asked.gets]
            confirming = {one.group: None for one, _, asked in asking if asked.confirm}
            gets += [infos.confirm_get(group.name) for group in confirming]
            tally.info_gets += len(confirming)
            tally.kv_calls += bool(gets)
            answers = (yield gets) if gets else []
            failed: dict[ServedGroup, UnavailableError] = {}
            if isinstance(answers, PartlyReadError):
                answers, failed = _without_failed(answers, asking, confirming)
            for group, rows in zip(confirming, answers[len(answers) - len(confirming) :], strict=True):
                if group not in failed:
                    infos.learn(group, rows)
            active, at = waiting, 0
            for one, reading, asked in asking:
                count = len(asked.gets)
                if asked.confirm and one.group in failed:
                    _fail(one, reading, failed[one.group])
                elif one.problem is None:
                    _step(active, one, reading, answers[at : at + count])
                at += count
    finally:
        for _, reading, _ in active:
            reading.close()


def run(rounds_: Rounds, get_many: Callable[[Sequence[Get]], list[list[TimedValue]]]) -> None:
    """Run the rounds of a fetch on a blocking store."""
    try:
        asked = next(rounds_)
        while True:
            if isinstance(asked, Future):
                asked.exception()
                asked = rounds_.send([])
            else:
                try:
                    answers: Answers = get_many(asked)
                except PartlyReadError as error:
                    answers = error
                asked = rounds_.send(answers)
    except StopIteration:
        return
    finally:
        rounds_.close()


async def run_async(rounds_: Rounds, get_many: Callable[[Sequence[Get]], Awaitable[list[list[TimedValue]]]]) -> None:
    """Run the rounds of a fetch on an async store."""
    try:
        asked = next(rounds_)
        while True:
            if isinstance(asked, Future):
                await asyncio.wait([asyncio.wrap_future(asked)])
                asked = rounds_.send([])
            else:
                try:
                    answers: Answers = await get_many(asked)
                except PartlyReadError as error:
                    answers = error
                asked = rounds_.send(answers)
    except StopIteration:
        return
    finally:
        rounds_.close()


def _without_failed(
    partly: PartlyReadError, asking: Sequence[_Asking], confirming: Collection[ServedGroup]
) -> tuple[list[list[TimedValue]], dict[ServedGroup, UnavailableError]]:
    """End the reads whose rows did not come; what did come, and the GroupBys whose serving info did not."""
    answers, at = partly.answers, 0
    for one, reading, asked in asking:
        failures = [rows for rows in answers[at : at + len(asked.gets)] if isinstance(rows, UnavailableError)]
        if failures:
            _fail(one, reading, failures[0])
        at += len(asked.gets)
    infos = answers[len(answers) - len(confirming) :]
    failed = {group: rows for group, rows in zip(confirming, infos, strict=True) if isinstance(rows, UnavailableError)}
    return [[] if isinstance(rows, UnavailableError) else rows for rows in answers], failed


def _fail(one: WantedKey, reading: KeyReading, failure: UnavailableError) -> None:
    """End a read for which the store had no answer."""
    reading.close()
    one.problem = str(failure)


def _step(
    active: list[tuple[WantedKey, KeyReading, Reads]],
    one: WantedKey,
    reading: KeyReading,
    answers: list[list[TimedValue]] | None,
) -> None:
    """Send a read its rows, and note what it asks for next, or how it ended."""
    try:
        asked = next(reading) if answers is None else reading.send(answers)
    except StopIteration as ended:
        one.data = ended.value
    except BatchGone:
        pass
    except (CorruptionError, UnavailableError) as error:
        one.problem = str(error)
    else:
        active.append((one, reading, asked))
