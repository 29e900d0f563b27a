"""A keyed operator: the class that a user writes to keep something per key, without Spark.

It is a plain class with two methods, or three if it sets timers. `open` declares its states, once per shard. `process`
is called for every record, with the record's key. `on_timer` is called when a timer of the operator is due. The output
is what a call returns or yields. Before each call the key is made current, so the states are that key's alone.

Every caller makes the same calls, so an operator that was tested in a `Harness` means the same elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from millpond.errors import OptionError
from millpond.state.operator.states import States


class TimeDomain(StrEnum):
    """The time that a timer waits for."""

    EVENT = "event"
    PROCESSING = "processing"


class Timer(NamedTuple):
    """A timer whose time has come.

    Attributes:
        at_ms: the time it was set to.
        domain: event time or processing time.
    """

    at_ms: int
    domain: TimeDomain


class KeyTimers(Protocol):
    """The current key's timers in one time domain. They are state: durable, and undone together with it."""

    def register(self, expiry_ms: int) -> None:
        """Set a timer. Setting it twice sets it once. A timer in the past fires in the next advance of time."""

    def delete(self, expiry_ms: int) -> None:
        """Delete a timer."""

    def of_key(self) -> Iterator[int]:
        """Return the timers that are set, in ms, in ascending order."""


class Times:
    """The current times for all shards of an operator, in ms."""

    __slots__ = ("at_ms", "processing_ms", "watermark_ms")

    def __init__(self) -> None:
        self.at_ms: int | None = None
        self.watermark_ms = -1
        self.processing_ms = 0


class Context:
    """What an operator may ask beside its states. There is one per shard, and it may be kept."""

    __slots__ = ("_times", "event_timers", "processing_timers")

    def __init__(self, times: Times, event_timers: KeyTimers, processing_timers: KeyTimers) -> None:
        self._times = times
        self.event_timers = event_timers
        self.processing_timers = processing_timers

    @property
    def at_ms(self) -> int | None:
        """The event time of the current record; None if it has none, and in `on_timer`."""
        return self._times.at_ms

    @property
    def watermark_ms(self) -> int:
        """The watermark: no more records of this event time or before are expected. -1 before the first watermark."""
        return self._times.watermark_ms

    @property
    def processing_ms(self) -> int:
        """The processing time, by which the TTL of states is judged."""
        return self._times.processing_ms


class KeyedOperator(Protocol):
    """An operator with the methods that every operator needs.

    >>> class Count:
    ...     def open(self, states):
    ...         self.seen = states.value("seen", int, default=0)
    ...
    ...     def process(self, key, record, context):
    ...         self.seen.update(self.seen.get() + 1)
    ...         return [(key, self.seen.get())]
    """

    def open(self, states: States) -> None:
        """Declare the states, the same ones every time. No key is current yet."""

    def process(self, key: Any, record: Any, context: Context) -> Iterable[Any] | None:
        """Process one record. What is returned or yielded is output; None means no output."""


class TimedOperator(KeyedOperator, Protocol):
    """A keyed operator that sets timers."""

    def on_timer(self, key: Any, timer: Timer, context: Context) -> Iterable[Any] | None:
        """Handle a due timer of this key. It is deleted after this call, even if it is set again during the call."""


_METHODS = {"open": "open(self, states)", "process": "process(self, key, record, context)"}


def check_makes_operators(operator: Callable[[], KeyedOperator]) -> None:
    """Check that the argument makes operators. It may not be an operator itself, and must be callable.

    Raises:
        OptionError: it does not. The message names the argument and what to give instead.
    """
    name = type(operator).__name__
    if not isinstance(operator, type) and all(hasattr(operator, method) for method in _METHODS):
        raise OptionError(
            f"the operator is an instance of {name}, and every shard needs one of its own. Give the class, {name}, or "
            "a function that makes one."
        )
    if not callable(operator):
        raise OptionError(f"the operator is {name} {operator!r}; expected a class, or a function that makes operators.")


def check_operator(operator: KeyedOperator) -> None:
    """Check that an operator has all its methods.

    Raises:
        OptionError: it does not. The message names its class and what is missing.
    """
    missing = [call for method, call in _METHODS.items() if not callable(getattr(operator, method, None))]
    if missing:
        pyspark = " A StatefulProcessor of PySpark runs in ProcessorHarness." * hasattr(operator, "handleInputRows")
        raise OptionError(f"{type(operator).__name__} is no operator: it has no {' and no '.join(missing)}.{pyspark}")
