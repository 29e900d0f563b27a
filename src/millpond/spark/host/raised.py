"""Send an exception from a state host to a worker, with its traceback and its causes.

Pickling an exception drops its traceback and causes. So each exception of the chain travels as a
`Raised`, and the worker raises one that prints as it did in the host.
"""

import traceback

import msgspec
from pyspark import cloudpickle

from millpond.spark.environment.tracebacks import Place, built, places

_MOST_LINKS = 10


class Raised(msgspec.Struct, frozen=True):
    """One exception.

    Attributes:
        pickled: the exception itself; empty if it cannot be pickled.
        text: its type and message, as in the last line of a traceback.
        places: the places of its frames, outermost first.
        cause: the exception it was raised from.
        context: the exception that was being handled when it was raised; None if it is suppressed.
    """

    pickled: bytes
    text: str
    places: tuple[Place, ...]
    cause: "Raised | None" = None
    context: "Raised | None" = None

    @classmethod
    def of(cls, error: BaseException, links: int = _MOST_LINKS) -> "Raised":
        """Encode an error. A chain of causes is cut after `links`."""

        def linked(other: BaseException | None) -> "Raised | None":
            return None if other is None or links == 0 else cls.of(other, links - 1)

        return cls(
            pickled=_pickled(error),
            text="".join(traceback.format_exception_only(error)).strip(),
            places=tuple(places(error.__traceback__)),
            cause=linked(error.__cause__),
            context=None if error.__suppress_context__ else linked(error.__context__),
        )

    def error(self) -> BaseException:
        """Rebuild the exception, with traceback and causes. A RuntimeError stands for one that was not pickled."""
        error: BaseException
        error = cloudpickle.loads(self.pickled) if self.pickled else RuntimeError(self.text)
        if self.cause is not None:
            error.__cause__ = self.cause.error()
        elif self.context is not None:
            error.__context__ = self.context.error()
        return error.with_traceback(built(self.places))


def _pickled(error: BaseException) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:  # noqa: BLE001 - user exceptions may fail to pickle in any way they like
        return b""
    return data
