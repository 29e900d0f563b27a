"""One fetch as rounds of calls to the store: many keys, one `get_many` per round.

Place on the data path: between the fetcher and the reads of single keys. `rounds` is a generator, as these
reads are. So the blocking and the async fetcher differ only in how they wait.

All reads advance together. The gets of a round are sent in one call, which asks once per GroupBy whether
its batch is still served. A read that needs another fetch's result waits last, when this fetch has nothing
left to read for others. So two fetches never wait for each other.

Where some servers of a store did not answer, the reads of the keys on them end with that error, and the
others go on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from millpond.errors import CorruptionError, UnavailableError
from millpond.features.answering import Layout
from millpond.kv import Get, PartlyReadError, TimedValue
from millpond.serving.counters import READ_COUNTS, ReadCounts, Tally
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.groups.serving_info import ServingInfos
from millpond.serving.reads.key_read import BatchGone, KeyData, KeyReading, Reads, read_key
from millpond.serving.reads.short_read import ShortRead, ShortReader, ShortResult

Round = list[Get] | Future[Any]
Answers = list[list[TimedValue]] | PartlyReadError
"""The rows of each get of a round; if some servers did not answer, an error with the rows that came."""

Rounds = Generator[Round, Answers, None]


class WantedKey:
    """One key of one GroupBy in one fetch, for all requests that ask for it.

    Attributes:
        short: what a short read found; None if the key had a full read.
        data: what the full read found; None if `problem` says why not, or no batch is served.
        problem: why nothing could be read.
        is_looked_up: whether the key was already looked up in the cache.
        begun: its short read, if one was begun before.
    """

    __slots__ = ("begun", "data", "group", "is_looked_up", "key", "layout", "problem", "queries", "reader", "short")

    def __init__(
        self, group: ServedGroup, layout: Layout, reader: ShortReader | None, key: bytes, query_ms: int
    ) -> None:
        self.group = group
        self.reader = reader
        self.is_looked_up = False
        self.begun: ShortRead | None = None
        self.short: ShortResult | None = None
        self.layout = layout
        self.key = key
        self.queries = [query_ms]
        self.data: KeyData | None = None
        self.problem: str | None = None

    def begin_short(self, now_ms: int) -> ShortRead | None:
        """Begin the short read of this key; return None if it needs the full read."""
        if self.begun is not None or self.reader is None or len(self.queries) > 1:
            return self.begun
        if self.is_looked_up:
            return self.reader.begin_missed(self.key, self.queries[0], now_ms)
        self.is_looked_up = True
        return self.reader.begin(self.key, self.queries[0], now_ms)

    def reading(self, now_ms: int, tally: Tally) -> KeyReading | None:
        """Return the full read of this key, or None if no query can be answered."""
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
        return read_key(self.group, self.layout, self.key, queries, now_ms, tally, is_looked_up=self.is_looked_up)


_Asking = tuple[WantedKey, KeyReading, Reads]
_Active = list[_Asking]


def rounds(wanted: Iterable[WantedKey], infos: ServingInfos, now_ms: int, tally: Tally) -> Rounds:
    """Read all keys; yield the gets of each round, or a result of another fetch that must be waited for.

    The first round has the gets of the short reads and the first gets of the full ones.
    """
    active: _Active = []
    short: list[tuple[WantedKey, ShortRead]] = []
    unconfirmed: list[WantedKey] = []
    counts: list[ReadCounts] = []
    ended = 0
    try:
        for one in wanted:
            begun = one.begin_short(now_ms)
            if begun is not None:
                short.append((one, begun))
            else:
                _begin(active, one, now_ms, tally)
        while active or short or unconfirmed:
            asking = [item for item in active if item[2].flight is None]
            if not asking and not short and not unconfirmed:
                one, reading, asked = active.pop(0)
                if asked.flight is not None:
                    yield asked.flight
                _step(active, one, reading, [])
                continue
            waiting = [item for item in active if item[2].flight is not None]
            gets = [get for _, begun in short for get in begun.gets]
            gets += [get for _, _, asked in asking for get in asked.gets]
            confirming = {one.group: None for one, _, asked in asking if asked.confirm}
            confirming |= {one.group: None for one in unconfirmed}
            gets += [infos.confirm_get(group.name) for group in confirming]
            tally.info_gets += len(confirming)
            tally.kv_calls += bool(gets)
            answers = (yield gets) if gets else []
            failed: dict[ServedGroup, UnavailableError] = {}
            short_failed: set[WantedKey] = set()
            if isinstance(answers, PartlyReadError):
                answers, failed, short_failed = _without_failed(answers, short, asking, confirming)
            for group, rows in zip(confirming, answers[len(answers) - len(confirming) :], strict=True):
                if group not in failed:
                    infos.learn(group, rows)
            active, at = waiting, 0
            long = [one for one in unconfirmed if not _confirm(one, failed)]
            unconfirmed = []
            for one, begun in short:
                ended += 1
                count = len(begun.gets)
                found = None
                if one in short_failed:
                    begun.close()
                else:
                    found = _end(begun, answers[at : at + count])
                at += count
                if found is None:
                    long.append(one)
                    continue
                counts.append(found.counts)
                one.short = found
                if not found.is_confirmed:
                    unconfirmed.append(one)
            short, ended = [], 0
            for one, reading, asked in asking:
                count = len(asked.gets)
                if asked.confirm and one.group in failed:
                    _fail(one, reading, failed[one.group])
                elif one.problem is None:
                    _step(active, one, reading, answers[at : at + count])
                at += count
            for one in long:
                _begin(active, one, now_ms, tally)
    finally:
        for name, amounts in zip(READ_COUNTS, zip(*counts, strict=True), strict=False):
            setattr(tally, name, getattr(tally, name) + sum(amounts))
        for _, reading, _ in active:
            reading.close()
        for _, begun in short[ended:]:
            begun.close()


def _begin(active: _Active, one: WantedKey, now_ms: int, tally: Tally) -> None:
    """Begin the full read of a key."""
    reading = one.reading(now_ms, tally)
    if reading is not None:
        _step(active, one, reading, None)


def _end(begun: ShortRead, answers: list[list[TimedValue]]) -> ShortResult | None:
    """Return what a short read found; None for the full read, which also reports what does not decode."""
    try:
        return begun.end(answers)
    except CorruptionError:
        return None


def _confirm(one: WantedKey, failed: Collection[ServedGroup]) -> bool:
    """Return whether the batch of a short read is still served, so that an absent row is believed."""
    short = one.short
    if short is not None and one.group not in failed and one.group.served.landed is short.landed:
        if short.on_confirmed is not None:
            short.on_confirmed()
        return True
    one.short = None
    return False


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
    partly: PartlyReadError,
    short: Sequence[tuple[WantedKey, ShortRead]],
    asking: Sequence[_Asking],
    confirming: Collection[ServedGroup],
) -> tuple[list[list[TimedValue]], dict[ServedGroup, UnavailableError], set[WantedKey]]:
    """End the full reads whose rows did not come.

    Returns the rows that did come, the GroupBys whose serving info did not, and the short reads whose rows did not.
    These keys need the full read, which says what failed.
    """
    answers, at = partly.answers, 0
    short_failed = set()
    for one, begun in short:
        if any(isinstance(rows, UnavailableError) for rows in answers[at : at + len(begun.gets)]):
            short_failed.add(one)
        at += len(begun.gets)
    for one, reading, asked in asking:
        failures = [rows for rows in answers[at : at + len(asked.gets)] if isinstance(rows, UnavailableError)]
        if failures:
            _fail(one, reading, failures[0])
        at += len(asked.gets)
    infos = answers[len(answers) - len(confirming) :]
    failed = {group: rows for group, rows in zip(confirming, infos, strict=True) if isinstance(rows, UnavailableError)}
    return [[] if isinstance(rows, UnavailableError) else rows for rows in answers], failed, short_failed


def _fail(one: WantedKey, reading: KeyReading, failure: UnavailableError) -> None:
    """End a read for which the store had no answer."""
    reading.close()
    one.problem = str(failure)


def _step(
    active: _Active,
    one: WantedKey,
    reading: KeyReading,
    answers: list[list[TimedValue]] | None,
) -> None:
    """Send a read its rows; note what it asks for next, or how it ended."""
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
