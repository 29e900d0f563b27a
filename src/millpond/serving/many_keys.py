"""Many keys of one GroupBy at one time: what a batch of candidates is scored with.

Place on the data path: beside `FetchCall`, which answers everything, and `OneKey`. The keys are looked up in
the cache together, and the tails of those that are there are read and merged in one pass. The others are a
`FetchCall`, whose first gets leave in the same call of the store. A test compares all three.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from millpond.errors import UnavailableError
from millpond.kv import PartlyReadError, TimedValue
from millpond.serving.cached_reader import CachedReader
from millpond.serving.cached_reads import CachedReads, begin_many
from millpond.serving.counters import Tally
from millpond.serving.fetch_call import FetchCall, Shared, ShortWays
from millpond.serving.fetch_rounds import Answers, Round, Rounds
from millpond.serving.messages import FetchRequest, FetchResponse
from millpond.serving.one_join import OneJoin
from millpond.serving.one_key import OneKey
from millpond.serving.short_read import READ_COUNTS, ReadCounts

Tails = list[list[TimedValue] | UnavailableError]
"""For each tail its rows, or the error of the server that has them."""


class ManyKeys:
    """One call for several keys of one GroupBy; made by `many_keys`.

    Args:
        shared: what all calls share.
        one: the GroupBy, the features wanted of it, and how an answer ends.
        reader: the short way to its keys.
        requests: what is asked for; they differ in their keys alone.
        keys: the encoded keys, each once.
        at: the time that is asked for.
        now_ms: the present.
    """

    __slots__ = ("_answers", "_at", "_keys", "_now_ms", "_one", "_reader", "_requests", "_shared", "_tally")

    def __init__(
        self,
        shared: Shared,
        one: OneKey,
        reader: CachedReader,
        requests: Sequence[FetchRequest],
        keys: Sequence[bytes],
        at: int,
        now_ms: int,
    ) -> None:
        self._shared = shared
        self._one = one
        self._reader = reader
        self._requests = requests
        self._keys = keys
        self._at = at
        self._now_ms = now_ms
        self._tally = Tally()
        self._answers: dict[int, FetchResponse] = {}

    def rounds(self) -> Rounds:
        """Read what is wanted."""
        everything = range(len(self._keys))
        read = begin_many(self._reader, self._keys, self._at, self._now_ms)
        if read is None or not read.gets:
            yield from self._read_otherwise(everything, "open" if read is None else "missed")
            return
        tails = yield from self._read_together(read)
        missed = frozenset(read.missed)
        failed = self._answer([place for place in everything if place not in missed], read, tails)
        if failed:
            yield from self._read_otherwise(failed, "tried")

    def responses(self) -> list[FetchResponse]:
        """Give the answers, in the order of the requests."""
        self._shared.counters.add(self._tally)
        answers = self._answers
        return [answers[place] for place in range(len(self._requests))]

    def _read_together(self, read: CachedReads) -> Generator[Round, Answers, Tails]:
        """Read the tails, and in the same call of the store what the other keys ask for first; then all of those."""
        others = self._call(read.missed, "missed") if read.missed else None
        theirs: Rounds = others.rounds() if others is not None else _nothing()
        try:
            asked = next(theirs, None)
            if asked is None or isinstance(asked, Future):
                self._tally.kv_calls = 1
                tails, answers = _split((yield read.gets), len(read.gets))
            else:
                tails, answers = _split((yield [*read.gets, *asked]), len(read.gets))
                asked = _next(theirs, answers)
            while asked is not None:
                asked = _next(theirs, (yield asked))
        finally:
            theirs.close()
        if others is not None:
            self._answers |= zip(read.missed, others.responses(), strict=True)
        return tails

    def _read_otherwise(self, places: Sequence[int], short_ways: ShortWays) -> Rounds:
        """Read and answer some keys as any other call does."""
        call = self._call(places, short_ways)
        yield from call.rounds()
        self._answers |= zip(places, call.responses(), strict=True)

    def _call(self, places: Sequence[int], short_ways: ShortWays) -> FetchCall:
        requests = [self._requests[place] for place in places]
        return FetchCall(self._shared, requests, short_ways=short_ways, now_ms=self._now_ms)

    def _answer(self, places: Sequence[int], read: CachedReads, tails: Tails) -> list[int]:
        """Answer the keys that were read, and count; give the places of those that were not."""
        one = self._one
        failed: list[int] = []
        left: Iterable[int] = range(len(places))
        columns = read.columns(tails)
        if columns is not None:
            self._add([places[at] for at in columns.places], one.finish_columns(columns.bases, columns.tails), read)
            self._count(columns.counts)
            left = sorted(set(left).difference(columns.places))
        for at in left:
            result = read.end(at, tails[at])
            if result is None:
                failed.append(places[at])
            else:
                self._add([places[at]], [one.finish(result.bases, result.tails)], read)
                self._count(result.counts)
        return failed

    def _add(self, places: Sequence[int], found: Sequence[dict[str, Any]], read: CachedReads) -> None:
        """Keep some answers, and count their values."""
        tally, log, requests = self._tally, self._shared.log, self._requests
        answers = self._one.responses([requests[place].keys for place in places], self._at, found, read.landed)
        self._answers.update(zip(places, answers, strict=True))
        null = sum([len(answer.states) for answer in answers])
        tally.requests += len(answers)
        tally.null += null
        tally.present += sum(map(len, found)) - null
        if log is not None:
            for answer in answers:
                log.offer(self._one.prepared, answer, {})

    def _count(self, counts: ReadCounts) -> None:
        """Count what was read."""
        tally = self._tally
        for name, amount in zip(READ_COUNTS, counts, strict=True):
            setattr(tally, name, getattr(tally, name) + amount)


def many_keys(
    shared: Shared,
    forms: Mapping[tuple[str, tuple[str, ...] | None], OneKey | OneJoin],
    requests: Sequence[FetchRequest],
) -> ManyKeys | None:
    """Give the form for many keys; None if the requests differ in more than their keys, or have no form for one.

    Raises:
        DataError: a key is not of its declared type.
    """
    first = requests[0]
    name, features, at = first.name, first.features, first.at
    if features is not None and type(features) is not tuple:
        return None
    one = forms.get((name, features))
    if type(one) is not OneKey or type(one.reader) is not CachedReader or not (at is None or type(at) is int):
        return None
    encode = one.encode
    keys: list[bytes] = []
    for request in requests:
        if (
            request.name != name
            or request.at != at
            or type(request.at) is not type(at)
            or request.features != features
            or request.context is not None
            or request.explain
        ):
            return None
        key = encode(request.keys)
        if key is None:
            return None
        keys.append(key)
    if len(set(keys)) < len(keys):
        return None
    now_ms = shared.now()
    return ManyKeys(shared, one, one.reader, requests, keys, now_ms if at is None else at, now_ms)


def _nothing() -> Rounds:
    """The rounds of a call that reads nothing."""
    yield from ()


def _next(rounds: Rounds, answers: Answers) -> Round | None:
    """Send rounds their answers; give what they ask for next, or None if that was all."""
    try:
        return rounds.send(answers)
    except StopIteration:
        return None


def _split(answers: Answers, count: int) -> tuple[Tails, Answers]:
    """Take the first answers from the others, which keep an error of their own only."""
    if not isinstance(answers, PartlyReadError):
        return [*answers[:count]], answers[count:]
    others = answers.answers[count:]
    if any(isinstance(rows, UnavailableError) for rows in others):
        return answers.answers[:count], PartlyReadError(others)
    return answers.answers[:count], [rows for rows in others if not isinstance(rows, UnavailableError)]
