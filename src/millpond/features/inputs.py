"""The inputs of events, checked and turned into columns.

Every value that is aggregated passes here, in upload and stream alike, a whole column at a time: its types
are checked as one set, its Nones are dropped in one pass. An input that is not as declared raises an error with its
name, before it gets into an IR, from which it could not be removed.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

from millpond.errors import DataError
from millpond.features.definitions import Field
from millpond.features.scalar_values import UnfitError
from millpond.features.types import parse_type

Inputs = Sequence[Any]
"""The inputs of one event, in declared order; each of its declared type, or None."""

EVENTS = -1
"""The position that stands for the events themselves among the columns of inputs."""


_TIMES = {int}


def check_times(group_by: str, times: Sequence[int]) -> None:
    """Raise if a time is not a whole number.

    Raises:
        DataError: one of them is not.

    >>> check_times("route", [1, float("nan")])
    Traceback (most recent call last):
    millpond.errors.DataError: GroupBy 'route': the time of an event must be a whole number of milliseconds, got nan...
    """
    if not set(map(type, times)) <= _TIMES:
        wrong = next(time for time in times if type(time) is not int)
        raise DataError(
            f"GroupBy {group_by!r}: the time of an event must be a whole number of milliseconds, got {wrong!r}; "
            "leave the event out, or give it a time"
        )


LARGEST_TIME_MS = 1 << 60
"""Times beyond this one are no milliseconds: differences of two times must fit into 64 bits."""


def check_time_range(group_by: str, least_ms: int, greatest_ms: int) -> None:
    """Raise if some times are too large for milliseconds since the epoch.

    Args:
        group_by: the name in errors.
        least_ms: the least of the times.
        greatest_ms: the greatest of the times.

    Raises:
        DataError: one of them is.

    >>> check_time_range("route", -(1 << 63), 0)
    Traceback (most recent call last):
    millpond.errors.DataError: GroupBy 'route': the time -9223372036854775808 is no number of milliseconds since the...
    """
    for time_ms in (least_ms, greatest_ms):
        if abs(time_ms) > LARGEST_TIME_MS:
            raise DataError(
                f"GroupBy {group_by!r}: the time {time_ms} is no number of milliseconds since the epoch; "
                "use unix_millis(column) on a timestamp, and null for a row without a time"
            )


def row_without_time(group_by: str, time_column: str | None) -> DataError:
    """Return the error for a row without a time.

    Args:
        group_by: the name in errors.
        time_column: the column of the queries that lacks the time; None if the row is an event.
    """
    whose = "a row has no time" if time_column is None else f"a row of the queries has no {time_column!r}, its time"
    return DataError(f"GroupBy {group_by!r}: {whose}; drop it or give it one")


class Column(NamedTuple):
    """One input of some events: its values in their inside form, and which events have one.

    ``present`` has one entry for each event; None if every event has a value. ``values`` are those of
    the events that have one, in order.
    """

    present: Sequence[bool] | None
    values: Sequence[Any]

    def aligned(self) -> Sequence[Any]:
        """Return a value or None for each event."""
        if self.present is None:
            return self.values
        following = iter(self.values)
        return [next(following) if there else None for there in self.present]


class EventColumns:
    """Turns the inputs of events into one checked column for each field; immutable."""

    __slots__ = ("_fields", "_group_by", "_types")

    def __init__(self, group_by: str, fields: Sequence[Field]) -> None:
        self._group_by = group_by
        self._fields = tuple(fields)
        self._types = tuple(parse_type(field.type) for field in fields)

    def columns(self, events: Sequence[Inputs]) -> list[Column]:
        """Return a column for each field.

        Args:
            events: at least one.

        Raises:
            DataError: an event has too many or too few inputs, or one that is not of its declared type.
        """
        widths = set(map(len, events))
        if widths != {len(self._fields)}:
            names = tuple(field.name for field in self._fields)
            raise DataError(f"GroupBy {self._group_by!r}: an event has the inputs {names}, got {sorted(widths)} values")
        return list(map(self.column, range(len(self._fields)), zip(*events, strict=True)))

    def column(self, position: int, values: Sequence[Any]) -> Column:
        """Return the column of one field, from the value or None that each event has.

        Raises:
            DataError: a value is not of the declared type.
        """
        field, type_ = self._fields[position], self._types[position]
        present = None
        if None in values:
            present = [value is not None for value in values]
            values = list(compress(values, present))
        try:
            return Column(present, type_.inward(values))
        except UnfitError as unfit:
            raise unfit_input(f"GroupBy {self._group_by!r}", field, unfit) from unfit


def unfit_input(whose: str, field: Field, unfit: UnfitError) -> DataError:
    """Return the error for an input that is not as declared.

    Args:
        whose: the beginning of the error, such as ``"GroupBy 'route'"``.
        field: the input.
        unfit: its value, and why it does not fit.
    """
    return DataError(
        f"{whose}: input {field.name!r} must be of type {field.type} or None, "
        f"got {unfit.value!r}: {unfit.reason}; convert it before it is aggregated"
    )
