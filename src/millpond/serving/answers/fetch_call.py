"""One call of the fetcher: its requests, the keys that they want, and their answers.

Place on the data path: between the public `Fetcher` and the rounds. Equal keys of one call are read once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from millpond.features.query_times import refused_time
from millpond.features.stored.rows import MAX_QUERY_MS
from millpond.serving.answers.answer_values import Stale, response
from millpond.serving.answers.explain import explained
from millpond.serving.answers.prepared import Prepared, PreparedPart
from millpond.serving.counters import Counters, Tally
from millpond.serving.groups.serving_info import ServingInfos
from millpond.serving.messages import FetchRequest, FetchResponse
from millpond.serving.reads.fetch_rounds import Rounds, WantedKey, rounds
from millpond.serving.reads.short_read import ShortRead

if TYPE_CHECKING:
    from millpond.serving.answers.answer_log import AnswerLog


class Shared(msgspec.Struct, frozen=True):
    """What all calls of one fetcher share.

    Attributes:
        prepare: resolves a target and the features wanted of it.
        infos: what is served.
        counters: where calls are counted.
        log: where a sample of the answers is logged; None if none is.
        stale: what to do with features if the batch is too old for their windows.
        now: returns the present in milliseconds UTC.
    """

    prepare: Callable[[str, Sequence[str] | None], Prepared]
    infos: ServingInfos
    counters: Counters
    log: "AnswerLog | None"
    stale: Stale
    now: Callable[[], int]


ShortWays = Literal["open", "missed", "tried", "closed"]
"""Whether the keys of a call may be read by short reads. ``open``: they may. ``missed``: they may, but the cache was
already looked up and missed. ``tried``: no, a short read was tried and found no answer. ``closed``: no."""


class FetchCall:
    """One call of `fetch_many`: its requests, and the keys that they want.

    Args:
        shared: what all calls share.
        requests: what is asked for.
        needs_context: whether the context of a request is checked.
        short_ways: whether keys may be read by short reads.
        now_ms: the present; None reads the clock.
        begun: for each part of the only request, its short read if one was begun; these parts begin no other.
    """

    __slots__ = ("_asked", "_now_ms", "_shared", "_tally", "wanted")

    def __init__(
        self,
        shared: Shared,
        requests: Sequence[FetchRequest],
        *,
        needs_context: bool = True,
        short_ways: ShortWays = "open",
        now_ms: int | None = None,
        begun: Sequence[ShortRead | None] = (),
    ) -> None:
        self._shared = shared
        self._tally = Tally()
        self.wanted: dict[Any, WantedKey] = {}
        if now_ms is None:
            now_ms = shared.now()
        self._now_ms = now_ms
        asked = []
        former: FetchRequest | None = None
        for request in requests:
            if former is None or request.name != former.name or request.features != former.features:
                prepared, former = shared.prepare(request.name, request.features), request
            at = request.at
            if at is None:
                at = now_ms
            elif type(at) is not int or at >= MAX_QUERY_MS:
                raise refused_time(request.name, at)
            context: Mapping[str, Any] = {}
            if needs_context and (request.context is not None or prepared.context):
                context = prepared.checked_context(request.context)
            ways: ShortWays = "closed" if request.explain else short_ways
            parts = [
                None if key is None else want(self.wanted, part, key, at, ways)
                for part, key in zip(prepared.parts, prepared.encoded_keys(request.keys), strict=True)
            ]
            asked.append((request, prepared, at, context, parts))
        self._asked = asked
        for one, read in zip(asked[0][4], begun, strict=True) if begun else ():
            if one is not None and one.begun is None:
                one.begun = read
            elif read is not None:
                read.close()  # another part has the same key

    def rounds(self) -> Rounds:
        """Read what is wanted."""
        return rounds(self.wanted.values(), self._shared.infos, self._now_ms, self._tally)

    def responses(self) -> list[FetchResponse]:
        """Return the answers, in the order of the requests."""
        shared, tally = self._shared, self._tally
        answers = []
        for request, prepared, at, context, wanted in self._asked:
            answer = response(prepared, request.keys, at, wanted, shared.stale, context)
            if request.explain:
                answer = explained(answer, prepared, wanted, at)
            states = answer.states
            if states:
                unavailable = sum(state == "unavailable" for state in states.values())
                tally.unavailable += unavailable
                tally.null += len(states) - unavailable
                tally.errors += unavailable > 0
            tally.present += len(prepared.features) - len(states)
            answers.append(answer)
            if shared.log is not None:
                shared.log.offer(prepared, answer, context)
        tally.requests = len(answers)
        shared.counters.add(tally)
        return answers

    def warmed(self) -> int:
        """Count the keys that were read as warmed, and return how many there are."""
        self._tally.warmed = sum(one.data is not None for one in self.wanted.values())
        self._shared.counters.add(self._tally)
        return self._tally.warmed


def want(
    wanted: dict[Any, WantedKey], part: PreparedPart, key: bytes, at: int, short_ways: ShortWays = "open"
) -> WantedKey:
    """Add a key of a part at a time to what one call reads; equal keys are added once."""
    address = (part.group.name, part.layout, key)
    one = wanted.get(address)
    if one is None:
        reader = part.reader if short_ways in ("open", "missed") else None
        one = wanted[address] = WantedKey(part.group, part.layout or part.group.layout, reader, key, at)
        one.is_looked_up = short_ways in ("missed", "tried")
        return one
    if short_ways in ("tried", "closed"):
        one.reader = None
    if at not in one.queries:
        one.queries.append(at)
    return one
