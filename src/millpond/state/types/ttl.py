"""Time to live: how long a value is state after it was last written, or last used.

A state with a TTL keeps the time, in ms, at which each value's life began, beside the value (each element of a list,
each entry of a map). The time comes from the batch or the watermark, never from a machine's clock. Expiry is judged by
the same time, so a replayed batch expires the same values.

Source: Flink's StateTtlConfig.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from millpond.errors import OptionError
from millpond.state.types.codec import ValueCodec
from millpond.state.types.times import LAST_MS

LIFE_FIELD = pa.field("$alive_since_ms", pa.int64())
"""The column that a state with a TTL has in segments, after the columns of its values."""

Refresh = Literal["write", "read-and-write"]
Visibility = Literal["never", "until-cleaned"]
CleanUp = Literal["snapshot", "incremental", "compaction"]

_Stamped = tuple[Any, int]


@dataclass(frozen=True)
class Ttl:
    """The time to live of one state's values.

    Attributes:
        duration_ms: a value is expired when this much time, 1 ms or more, has passed since its life began.
        refresh: what begins a new life: a `"write"`, or `"read-and-write"`.
        visibility: whether expired values are `"never"` returned, or `"until-cleaned"`: while they are still there.
        clean_up: when expired values are removed. `"snapshot"` leaves them out of every full snapshot (a checkpoint, a
            savepoint, what a reader gives of a version), and removes none from live state. `"incremental"` checks a
            few cells with every access. `"compaction"` leaves them out of full snapshots too, and of a key group when
            a checkpoint rewrites it. Then it removes from live state what is still expired there: when the next
            checkpoint begins, on Spark when the next batch begins.

    >>> hour = Ttl.of(dt.timedelta(hours=1))
    >>> hour.expired(0, now_ms=3_599_999), hour.expired(0, now_ms=3_600_000)
    (False, True)
    """

    duration_ms: int
    refresh: Refresh = "write"
    visibility: Visibility = "never"
    clean_up: tuple[CleanUp, ...] = ("snapshot", "compaction")

    def __post_init__(self) -> None:
        if type(self.duration_ms) is not int or self.duration_ms < 1:
            raise OptionError(f"ttl.duration_ms is {self.duration_ms!r}; expected a whole number of ms, 1 or more.")
        if self.duration_ms > LAST_MS:
            raise OptionError(
                f"ttl.duration_ms is {self.duration_ms}; expected {LAST_MS} at most, which is what a "
                "checkpoint's manifest holds. For state that never expires, give no ttl."
            )
        for option, kinds, chosen in (
            ("refresh", Refresh, (self.refresh,)),
            ("visibility", Visibility, (self.visibility,)),
            ("clean_up", CleanUp, self.clean_up),
        ):
            allowed = get_args(kinds)
            wrong = [word for word in chosen if word not in allowed]
            if wrong or not isinstance(chosen, tuple):
                raise OptionError(f"ttl.{option} is {getattr(self, option)!r}; expected of {allowed}.")

    @staticmethod
    def of(duration: "Ttl | dt.timedelta | int") -> "Ttl":
        """Return a Ttl as it is; a time difference, or a number of ms, as a Ttl with the defaults."""
        if isinstance(duration, Ttl):
            return duration
        if isinstance(duration, dt.timedelta):
            whole, rest = divmod(duration, dt.timedelta(milliseconds=1))
            if rest:
                raise OptionError(f"a ttl of {duration} is no whole number of ms. Round it.")
            return Ttl(whole)
        if isinstance(duration, bool) or not isinstance(duration, int):
            raise OptionError(f"a ttl is a Ttl, a timedelta or a number of ms; got {duration!r}.")
        return Ttl(duration)

    def expired(self, alive_since_ms: int, now_ms: int) -> bool:
        """Return whether a life that began then is over now. A life that begins later than now is not over."""
        return now_ms - alive_since_ms >= self.duration_ms

    @property
    def leaves_snapshots(self) -> bool:
        """Whether a full snapshot (a checkpoint, a savepoint, what a reader gives) has no expired values."""
        return "snapshot" in self.clean_up or "compaction" in self.clean_up

    def describe(self) -> str:
        """Describe it in a few words: the duration, and what differs from the defaults.

        >>> Ttl(1_000, refresh="read-and-write").describe()
        "1000 ms, refresh='read-and-write'"
        """
        usual = Ttl(self.duration_ms)
        others = [
            f"{name}={getattr(self, name)!r}"
            for name in ("refresh", "visibility", "clean_up")
            if getattr(self, name) != getattr(usual, name)
        ]
        return ", ".join([f"{self.duration_ms} ms", *others])


class TtlCodec:
    """A `ValueCodec` for pairs `(value, alive_since_ms)` over the codec of the values."""

    __slots__ = ("_inner", "copy", "mutable", "schema")

    def __init__(self, inner: ValueCodec) -> None:
        self._inner = inner
        self.schema = inner.schema.append(LIFE_FIELD)
        self.mutable = inner.mutable
        copy = inner.copy
        self.copy: Callable[[_Stamped], _Stamped] = (
            (lambda stamped: (copy(stamped[0]), stamped[1])) if self.mutable else (lambda stamped: stamped)
        )

    def check(self, stamped: _Stamped) -> _Stamped:
        """Return the pair with its value as it is kept."""
        return self._inner.check(stamped[0]), stamped[1]

    def dumps(self, stamped: _Stamped) -> bytes:
        """Encode a pair: eight bytes of time before the bytes of the value."""
        return stamped[1].to_bytes(8, "big", signed=True) + self._inner.dumps(stamped[0])

    def loads(self, data: bytes) -> _Stamped:
        """Decode a pair."""
        return self._inner.loads(data[8:]), alive_since_ms(data)

    def columns(self, values: Sequence[_Stamped]) -> list[pa.Array]:
        """Convert pairs to the columns of their values and one of times."""
        inner = self._inner.columns([value for value, _ in values])
        return [*inner, pa.array([alive_since for _, alive_since in values], type=pa.int64())]

    def rows(self, columns: Sequence[pa.Array]) -> Iterator[_Stamped]:
        """Return the pairs from which `columns` was made."""
        return zip(self._inner.rows(columns[:-1]), columns[-1].to_pylist(), strict=True)


def alive_since_ms(data: bytes) -> int:
    """Return the time in a pair's bytes."""
    return int.from_bytes(data[:8], "big", signed=True)
