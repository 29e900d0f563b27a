"""A partial cache's request to its source, for which other threads may wait (see `millpond.cache.flights`)."""

from millpond.cache.flights import Flight
from millpond.errors import OptionError
from millpond.lookup.functions.answers import Answers
from millpond.lookup.functions.function import Key


class Request(Flight):
    """One request to the source. Its results are complete once `done` is set.

    If a key then has neither rows nor a failure, and `error` is None, the thread of the request was interrupted.
    """

    __slots__ = ("answers", "error")

    def __init__(self) -> None:
        super().__init__()
        self.answers = Answers()
        self.error: Exception | None = None

    def wait_for(self, key: Key, answers: Answers) -> bool:
        """Wait for the request and add the key's result to `answers`. Return False if its thread was interrupted.

        Raises:
            Exception: the error of the whole request.
        """
        self.done.wait()
        if key in self.answers.rows:
            # A copy, because the list belongs to the other thread.
            answers.rows[key] = list(self.answers.rows[key])
        elif key in self.answers.failures:
            answers.failures[key] = self.answers.failures[key]
        elif self.error is not None:
            raise self.error
        else:
            return False
        return True


def needs_itself(where: str, key: Key) -> OptionError:
    """Return the error for a source that needs the cache entry that it is loading."""
    return OptionError(
        f"{where}: answering for key {key!r} needs the rows of {key!r}, which would wait for itself for ever; let the "
        "function get what it needs from outside this table"
    )
