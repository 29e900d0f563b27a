"""The steps of a client's fetch, without a network.

Place on the data path: between the clients, which send and wait, and the bytes (`conversation`).

Idea: a fetch is a generator. It yields what to send or how long to pause. It is sent the answer, or the error
if none came, and returns its result. So the rules of what is sent again, after which pause and until when, exist
once for the blocking and the async client. The clients differ in their connections, and in how they hedge.

Invariant: no step goes beyond the deadline of its fetch.
"""

import random
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from millpond.serving.client.address import Address
from millpond.serving.client.conversation import Batch, Conversation
from millpond.serving.client.exchange import Answer, BrokenAnswerError
from millpond.serving.client.retries import Deadline, Retries
from millpond.serving.messages import FetchResponse

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    import pyarrow as pa

_T = TypeVar("_T")

NO_ANSWER = (OSError, BrokenAnswerError)
"""The errors that a client sends to the generator if no answer came; a `TimeoutError` is an `OSError`."""


def has_failed(call: "Future[Answer] | asyncio.Future[Answer]") -> bool:
    """Return whether a hedged call that has ended failed. As a sort key it puts answers before failures."""
    return call.exception() is not None


class Send(NamedTuple):
    """Send a request by its deadline; then send the generator the `Answer`, or the error of `NO_ANSWER`."""

    request: bytes
    deadline: Deadline


class Pause(NamedTuple):
    """Wait; then send the generator None."""

    milliseconds: int


Outcome: TypeAlias = Answer | Exception | None
Steps: TypeAlias = Generator[Send | Pause, Outcome, _T]


class FetchSteps:
    """The steps of the fetches of one client; safe to use from several threads.

    Args:
        address: where the service is.
        api_key: the API key, if the service asks for one.
        timeout_ms: how long one fetch may take, including retries.
        retries: how often a call is sent again.
        clock: monotonic milliseconds.
        chance: randomises the pauses.
    """

    def __init__(
        self,
        address: Address,
        *,
        api_key: str | None,
        timeout_ms: int,
        retries: int,
        clock: Callable[[], int],
        chance: random.Random | None,
    ) -> None:
        self._conversation = Conversation(address, api_key)
        self._retries = Retries(retries, chance or random.Random())
        self._timeout_ms = timeout_ms
        self._clock = clock

    def fetch(self, batch: Batch) -> Steps[list[FetchResponse]]:
        """Fetch a batch; ask for the types of its target first if they are not known."""
        conversation, deadline = self._conversation, self._deadline()
        answer = yield from self._call(conversation.ask(batch), deadline)
        if not conversation.knows_types(batch, answer):
            conversation.learn_types((yield from self._call(conversation.ask_for_types(batch.name), deadline)))
        return conversation.responses(batch, answer)

    def fetch_table(self, target: str, table: "pa.Table", features: Sequence[str] | None) -> "Steps[pa.Table]":
        """Fetch the features of a table of keys."""
        conversation, deadline = self._conversation, self._deadline()
        return conversation.table(
            (yield from self._call(conversation.ask_for_table(target, table, features), deadline))
        )

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_ms, self._clock)

    def _call(self, request: bytes, deadline: Deadline) -> Steps[Answer]:
        """Send a request, again where that may help, and return the last answer."""
        sent = 0
        while True:
            sent += 1
            outcome = yield Send(request, deadline)
            answer = outcome if isinstance(outcome, Answer) else None
            if answer is not None and not self._conversation.may_retry(answer):
                return answer
            retry_after = None if answer is None else answer.headers.get("retry-after")
            pause_ms = self._retries.pause_ms(sent=sent, retry_after=retry_after, left_ms=deadline.left_ms())
            if pause_ms is not None:
                yield Pause(pause_ms)
            elif answer is not None:
                return answer
            else:
                failure = outcome if isinstance(outcome, Exception) else TimeoutError()
                raise self._conversation.unreachable(failure) from failure


def in_order(batches: Sequence[Batch], responses: Iterable[Sequence[FetchResponse]]) -> list[FetchResponse]:
    """Return the responses of all batches, in the order of the requests."""
    answers: dict[int, FetchResponse] = {}
    for batch, found in zip(batches, responses, strict=True):
        answers.update(zip(batch.positions, found, strict=True))
    return [answers[position] for position in range(len(answers))]
