"""Who is asking the source for which key right now, so that nobody else does.

Beside a partial cache. One request is for the keys of one batch and belongs to the thread that makes
it; other threads wait for it. The invariant: **nobody waits for something that waits for them**.
Batches cannot cross, because each makes its own request, to the end, before it waits for others'. What
is left is a source that looks up through the very cache that it fills: then a thread would wait for
its own request, or two for each other's. So each request knows its owner and each waiting thread its
request, and following the two from the request we want to wait for ends at a working thread, or at us.

Every method but `wait` needs the lock of the cache.

Source: as `millpond.cache.loading`, which does this for single keys.
"""

import threading
from collections.abc import Iterable

from millpond.errors import OptionError
from millpond.lookup.functions.answers import Answers
from millpond.lookup.functions.function import Key


class Request:
    """One request to the source, and what became of its keys once `done` is set.

    Where it has neither rows nor a failure of a key, and no `error` of the whole request, its thread was interrupted.
    """

    __slots__ = ("answers", "done", "error", "owner")

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.done = threading.Event()
        self.answers = Answers()
        self.error: Exception | None = None

    def wait_for(self, key: Key, answers: Answers) -> bool:
        """Add what became of the key to `answers`; False where its thread was interrupted.

        Raises:
            Exception: what failed the whole request.
        """
        self.done.wait()
        if key in self.answers.rows:
            # Copied, as the rows are that thread's.
            answers.rows[key] = list(self.answers.rows[key])
        elif key in self.answers.failures:
            answers.failures[key] = self.answers.failures[key]
        elif self.error is not None:
            raise self.error
        else:
            return False
        return True


class InFlight:
    """The requests under way of one cache, by key."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._requests: dict[Key, Request] = {}
        self._waiting: dict[int, Request] = {}

    def get(self, key: Key) -> Request | None:
        """The request that will answer for `key`."""
        return self._requests.get(key)

    def start(self, keys: Iterable[Key], request: Request) -> None:
        """From now on `request` answers for the keys."""
        self._requests.update(dict.fromkeys(keys, request))

    def forget(self, key: Key) -> None:
        """Let the request for `key`, if any, end without its answer being kept."""
        self._requests.pop(key, None)

    def end(self, keys: Iterable[Key], request: Request) -> list[Key]:
        """The request is over; the keys whose answer may be kept, as nobody forgot them meanwhile."""
        current = [key for key in keys if self._requests.get(key) is request]
        for key in current:
            del self._requests[key]
        return current

    def wait_for(self, key: Key, request: Request) -> None:
        """This thread is about to wait for `request`; `OptionError` if that would never end."""
        me = threading.get_ident()
        ahead: Request | None = request
        while ahead is not None and not ahead.done.is_set():
            if ahead.owner == me:
                raise OptionError(
                    f"{self._where}: answering for key {key!r} needs the rows of {key!r}, which would wait for itself "
                    "for ever; let the function get what it needs from outside this table"
                )
            ahead = self._waiting.get(ahead.owner)
        self._waiting[me] = request

    def waited(self) -> None:
        """This thread no longer waits."""
        self._waiting.pop(threading.get_ident(), None)
