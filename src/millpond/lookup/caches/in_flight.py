"""One request of a partial cache to its source, which other threads may wait for: see `millpond.cache.flights`."""

from millpond.cache.flights import Flight
from millpond.errors import OptionError
from millpond.lookup.functions.answers import Answers
from millpond.lookup.functions.function import Key


class Request(Flight):
    """One request to the source, and what became of its keys once `done` is set.

    Where it has neither rows nor a failure of a key, and no `error` of the whole request, its thread was interrupted.
    """

    __slots__ = ("answers", "error")

    def __init__(self) -> None:
        super().__init__()
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


def needs_itself(where: str, key: Key) -> OptionError:
    """The error for a source that looks up through the very cache that it fills."""
    return OptionError(
        f"{where}: answering for key {key!r} needs the rows of {key!r}, which would wait for itself for ever; let the "
        "function get what it needs from outside this table"
    )
