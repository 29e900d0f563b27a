"""An error on its way from a state host to a worker: the exception, its places, and what caused it.

An exception loses its traceback and its causes when it is pickled. So each link of the chain travels as
a `Raised`, and the worker raises an exception that prints as it did in the host.
"""

import traceback

import msgspec
from pyspark import cloudpickle

from millpond.spark.environment.tracebacks import Place, built, places

_MOST_LINKS = 10


class Raised(msgspec.Struct, frozen=True):
    """One exception.

    Attributes:
        pickled: the exception itself; empty where it cannot travel.
        text: its type and message, as the last line of a traceback.
        places: of its frames, the outermost first.
        cause: what it was raised from.
        context: what was being handled when it was raised, unless that is not to be shown.
    """

    pickled: bytes
    text: str
    places: tuple[Place, ...]
    cause: "Raised | None" = None
    context: "Raised | None" = None

    @classmethod
    def of(cls, error: BaseException, links: int = _MOST_LINKS) -> "Raised":
        """What travels for an error. A chain of causes is cut after `links`."""

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
        """The exception again, with traceback and causes."""
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
