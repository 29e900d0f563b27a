"""Answers many requests for one GroupBy or Join that differ only in their keys, such as a batch of candidates.

Place on the data path: beside `FetchCall`, which answers every request, and the forms for one request (`OneKey`,
`OneJoin`). The keys of each part are looked up in its cache together. The tails of the cached keys are read and
merged in one pass (`part_reads`). Requests with a key that needs the full read go to a `FetchCall`, whose first gets
are sent in the same call of the store. A test compares the three.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from millpond.errors import UnavailableError
from millpond.features.stored.rows import MAX_QUERY_MS
from millpond.kv import PartlyReadError
from millpond.serving.answers.fetch_call import FetchCall, Shared
from millpond.serving.answers.one_join import OneJoin
from millpond.serving.answers.one_key import OneKey, nulls
from millpond.serving.answers.part_reads import PartReads, Rows
from millpond.serving.counters import READ_COUNTS, Tally
from millpond.serving.messages import FetchRequest, FetchResponse
from millpond.serving.reads.fetch_rounds import Answers, Round, Rounds

Form = OneKey | OneJoin


class ManyKeys:
    """One call for several requests; made by `many_keys`.

    Args:
        shared: what all calls share.
        form: the GroupBy or Join, and its wanted features.
        requests: the requests, which differ only in their keys.
        keys: for each part, the encoded keys in the order of the requests.
        at: the query time.
        now_ms: the present.
    """

    __slots__ = ("_answers", "_at", "_ends", "_now_ms", "_parts", "_prepared", "_requests", "_shared", "_tally")

    def __init__(
        self,
        shared: Shared,
        form: Form,
        requests: Sequence[FetchRequest],
        keys: Iterable[Sequence[bytes]],
        at: int,
        now_ms: int,
    ) -> None:
        self._shared = shared
        self._prepared = form.prepared
        self._requests = requests
        self._parts = [PartReads(part, of_part) for part, of_part in zip(form.prepared.parts, keys, strict=True)]
        self._at = at
        self._now_ms = now_ms
        self._tally = Tally()
        self._answers: list[FetchResponse | None] = [None] * len(requests)

    def rounds(self) -> Rounds:
        """Read all keys and make the answers, as rounds of gets."""
        parts = self._parts
        landed = [part.part.group.served.landed for part in parts]
        self._ends: list[int | None] = [None if one is None else one.batch_end_ms for one in landed]
        try:
            for part in parts:
                part.begin(self._at, self._now_ms)
            failed = yield from self._read_together()
        finally:
            for part in parts:
                part.close()
        failed += yield from self._confirm()
        for part, batch in zip(parts, landed, strict=True):
            if part.part.group.served.landed is not batch:
                # A batch landed meanwhile, and its first reads may have begun before and others after.
                failed += [place for place, answer in enumerate(self._answers) if answer is None]
        others = dict.fromkeys(place for place in failed if self._answers[place] is None)
        self._finish(others)
        if others:
            yield from self._read_otherwise(list(others))

    def responses(self) -> list[FetchResponse]:
        """Return the answers, in the order of the requests, and count the call."""
        tally = self._tally
        for part in self._parts:
            for name, amount in zip(READ_COUNTS, part.counts, strict=True):
                setattr(tally, name, getattr(tally, name) + amount)
        self._shared.counters.add(tally)
        return [answer for answer in self._answers if answer is not None]

    def _read_together(self) -> Generator[Round, Answers, list[int]]:
        """Read all parts together with the first gets of the full reads, then finish the full reads.

        Return the requests whose short read found no answer.
        """
        parts = self._parts
        gets = [get for part in parts for get in part.gets] if len(parts) > 1 else parts[0].gets
        long = sorted({place for part in parts for place in part.long})
        others = self._call(long) if long else None
        theirs: Rounds = others.rounds() if others is not None else _nothing()
        failed: list[int] = []
        try:
            asked = next(theirs, None)
            joins = asked is not None and not isinstance(asked, Future)
            sent = [*gets, *asked] if joins and not isinstance(asked, Future) and asked is not None else gets
            self._tally.kv_calls += bool(gets) and not joins
            read, answers = _split((yield sent) if sent else [], len(gets))
            at = 0
            for part in parts:
                count = len(part.gets)
                failed += part.end(read[at : at + count] if len(parts) > 1 else read)
                at += count
            # Only from here on may this call wait for other fetches: the keys that they wait for have been read.
            if joins:
                asked = _next(theirs, answers)
            while asked is not None:
                asked = _next(theirs, (yield asked))
        finally:
            theirs.close()
        if others is not None:
            for place, answer in zip(long, others.responses(), strict=True):
                self._answers[place] = answer
        return failed

    def _confirm(self) -> Generator[Round, Answers, list[int]]:
        """Check that the batches in which a row was absent are still served; return the requests to read again."""
        absent = [(part, found, requests) for part in self._parts for found, requests in part.unconfirmed]
        if not absent:
            return []
        infos, tally = self._shared.infos, self._tally
        groups = list({part.part.group: None for part, _, _ in absent})
        tally.kv_calls += 1
        tally.info_gets += len(groups)
        answers = yield [infos.confirm_get(group.name) for group in groups]
        if isinstance(answers, PartlyReadError):
            return [place for _, _, requests in absent for place in requests]
        for group, rows in zip(groups, answers, strict=True):
            infos.learn(group, rows)
        failed: list[int] = []
        for part, found, requests in absent:
            if part.part.group.served.landed is found.landed:
                if found.on_confirmed is not None:
                    found.on_confirmed()
                part.take(found, requests)
            else:
                failed += requests
        return failed

    def _read_otherwise(self, places: Sequence[int]) -> Rounds:
        """Read and answer some requests with a `FetchCall`."""
        call = self._call(places)
        yield from call.rounds()
        for place, answer in zip(places, call.responses(), strict=True):
            self._answers[place] = answer

    def _call(self, places: Sequence[int]) -> FetchCall:
        requests = [self._requests[place] for place in places]
        return FetchCall(self._shared, requests, short_ways="tried", now_ms=self._now_ms)

    def _finish(self, without: Mapping[int, None]) -> None:
        """Answer and count all requests except those that are read again (`without`) and those with an answer."""
        prepared, at, answers, tally = self._prepared, self._at, self._answers, self._tally
        name, log, values = prepared.target.name, self._shared.log, [part.values for part in self._parts]
        single, wanted = prepared.single is not None, None if prepared.is_in_order else prepared.features
        if single and wanted is None and log is None and not without and not any(answers):
            self._finish_all(values[0])  # type: ignore[arg-type]  # else one is read anew
            return
        first, rest = values[0], values[1:]
        present = null = count = 0
        for place, request in enumerate(self._requests):
            if answers[place] is not None or place in without:
                continue
            features = first[place]
            assert features is not None  # noqa: S101 - else it is read anew
            for of_part in rest:
                features.update(of_part[place])  # type: ignore[arg-type]  # as above
            if wanted is not None:
                features = {name: features[name] for name in wanted}
            states = {} if all(features.values()) else nulls(features)
            ends = self._ends[0] if single else dict(zip(prepared.labels, self._ends, strict=True))
            answer = answers[place] = FetchResponse(name, request.keys, at, features, states, {}, ends)
            count += 1
            null += len(states)
            present += len(features)
            if log is not None:
                log.offer(prepared, answer, {})
        tally.requests += count
        tally.null += null
        tally.present += present - null

    def _finish_all(self, values: Sequence[dict[str, Any]]) -> None:
        """Like `_finish`, for the common case: a GroupBy, all its features, all keys, and no answer log."""
        name, at, end = self._prepared.target.name, self._at, self._ends[0]
        made = [
            FetchResponse(name, request.keys, at, features, {} if all(features.values()) else nulls(features), {}, end)
            for request, features in zip(self._requests, values, strict=True)
        ]
        self._answers[:] = made
        null = sum([len(answer.states) for answer in made])
        self._tally.requests += len(made)
        self._tally.null += null
        self._tally.present += sum(map(len, values)) - null


def many_keys(
    shared: Shared, forms: Mapping[tuple[str, tuple[str, ...] | None], Form], requests: Sequence[FetchRequest]
) -> ManyKeys | None:
    """Return the `ManyKeys` for some requests; None if they differ in more than their keys, or have no form.

    They also have none if a request has a context, wants an explanation, or lacks a key of a part.

    Raises:
        DataError: a key is not of its declared type.
    """
    first = requests[0]
    name, features, at = first.name, first.features, first.at
    if features is not None and type(features) is not tuple:
        return None
    form = forms.get((name, features))
    if form is None or not (at is None or (type(at) is int and at < MAX_QUERY_MS)):
        return None
    kind = type(at)
    for request in requests:
        if (
            request.at != at
            or request.name != name
            or type(request.at) is not kind
            or request.features != features
            or request.context is not None
            or request.explain
        ):
            return None
    keys: list[Any]
    if type(form) is OneKey:
        keys = form.encode_many([request.keys for request in requests])
        if None in keys:
            return None
        keys = [keys]
    else:
        encoded = form.prepared.encoded_keys
        keys = list(zip(*[encoded(request.keys) for request in requests], strict=True))
        if any(None in of_part for of_part in keys):
            return None
    now_ms = shared.now()
    return ManyKeys(shared, form, requests, keys, now_ms if at is None else at, now_ms)


def _nothing() -> Rounds:
    """Return the rounds of a call that reads nothing."""
    yield from ()


def _next(rounds: Rounds, answers: Answers) -> Round | None:
    """Send the answers to the rounds; return what they ask for next, or None if they have ended."""
    try:
        return rounds.send(answers)
    except StopIteration:
        return None


def _split(answers: Answers, count: int) -> tuple[Sequence[Rows], Answers]:
    """Split off the first `count` answers; the rest stay an error only if one of them is an error."""
    if not isinstance(answers, PartlyReadError):
        return (answers, []) if len(answers) == count else (answers[:count], answers[count:])
    others = answers.answers[count:]
    if any(isinstance(rows, UnavailableError) for rows in others):
        return answers.answers[:count], PartlyReadError(others)
    return answers.answers[:count], [rows for rows in others if not isinstance(rows, UnavailableError)]
