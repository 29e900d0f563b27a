"""Dates and timestamps as Spark computes them, in the time zone UTC.

Python has the years 1 to 9999. A result outside them fails, here and in the text for Spark.
"""

import re
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta

from millpond.features.derivations.numbers import trimmed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROS_IN_SECOND = 1_000_000

DATE_PATTERN = r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
TIMESTAMP_PATTERN = DATE_PATTERN + r"([T ][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}([.][0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
"""The form that a cast accepts. Spark accepts more; the text for Spark accepts only this, so that both do the same."""

_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[T ]([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})"
    r"(?:[.]([0-9]{1,6}))?(?:(Z)|([+-])([0-9]{2}):([0-9]{2}))?)?"
)
_MAX_OFFSET_MINUTES = 18 * 60


def parse_date(text: str) -> date | None:
    """Return the date that `text` has as year-month-day; None if it has none."""
    found = _TIMESTAMP.fullmatch(trimmed(text))
    if not found or found[4] is not None:
        return None
    try:
        return date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        return None


def parse_timestamp(text: str) -> datetime | None:
    """Return the time that `text` has, in UTC unless it has an offset; None if it has none."""
    found = _TIMESTAMP.fullmatch(trimmed(text))
    if not found:
        return None
    year, month, day, hour, minute, second = (int(found[group] or 0) for group in range(1, 7))
    offset_hours, offset_minutes = int(found[10] or 0), int(found[11] or 0)
    offset = (offset_hours * 60 + offset_minutes) * (-1 if found[9] == "-" else 1)
    if offset_minutes > 59 or abs(offset) > _MAX_OFFSET_MINUTES:  # noqa: PLR2004 - minutes
        return None
    try:
        there = datetime(year, month, day, hour, minute, second, int((found[7] or "0").ljust(6, "0")), tzinfo=UTC)
        return there - timedelta(minutes=offset)
    except (ValueError, OverflowError):
        return None


def date_text(value: date) -> str:
    """Return `value` as year-month-day."""
    return value.isoformat()


def timestamp_text(value: datetime) -> str:
    """Return `value` as Spark writes it: a fraction of a second without trailing zeros."""
    text = value.replace(tzinfo=None).isoformat(" ")
    return text.rstrip("0") if value.microsecond else text


def midnight(value: date) -> datetime:
    """Return the first moment of a day."""
    return datetime(value.year, value.month, value.day, tzinfo=UTC)


def unix_micros(value: datetime) -> int:
    """Return microseconds since 1970."""
    return (value - EPOCH) // MICROSECOND


def unix_seconds(value: datetime) -> int:
    """Return whole seconds since 1970, rounded down."""
    return unix_micros(value) // _MICROS_IN_SECOND


def unix_millis(value: datetime) -> int:
    """Return whole milliseconds since 1970, rounded down."""
    return unix_micros(value) // 1000


def unix_double(value: datetime) -> float:
    """Return seconds since 1970, with their fraction."""
    return unix_micros(value) / 1_000_000.0


def from_micros(value: int) -> datetime | None:
    """Return the time `value` microseconds after 1970."""
    try:
        return EPOCH + timedelta(microseconds=value)
    except OverflowError:
        return None


def from_seconds(value: int) -> datetime | None:
    """Return the time `value` seconds after 1970."""
    return from_micros(value * _MICROS_IN_SECOND)


def from_millis(value: int) -> datetime | None:
    """Return the time `value` milliseconds after 1970."""
    return from_micros(value * 1000)


def add_days(value: date, days: int) -> date | None:
    """Return the date `days` after `value`."""
    try:
        return value + timedelta(days=days)
    except OverflowError:
        return None


def subtract_days(value: date, days: int) -> date | None:
    """Return the date `days` before `value`."""
    return add_days(value, -days)


def from_unix_date(days: int) -> date | None:
    """Return the date `days` after 1970-01-01."""
    return add_days(date(1970, 1, 1), days)


def add_months(value: date, months: int) -> date | None:
    """Return the date `months` after `value`, or the last day of that month if it has fewer days."""
    year, month = divmod(value.year * 12 + value.month - 1 + months, 12)
    if not 1 <= year <= 9999:  # noqa: PLR2004 - the years of Python
        return None
    return date(year, month + 1, min(value.day, monthrange(year, month + 1)[1]))


def last_day(value: date) -> date:
    """Return the last day of the month of `value`."""
    return value.replace(day=monthrange(value.year, value.month)[1])


def week_of_year(value: date) -> int:
    """Return the number of the ISO week."""
    return value.isocalendar().week


def truncate_date(value: date, unit: str) -> date:
    """Return the first day of the `unit` that holds `value`."""
    match unit:
        case "YEAR":
            return value.replace(month=1, day=1)
        case "QUARTER":
            return value.replace(month=(value.month - 1) // 3 * 3 + 1, day=1)
        case "MONTH":
            return value.replace(day=1)
        case _:
            return value - timedelta(days=value.weekday())


def truncate_timestamp(value: datetime, unit: str) -> datetime:
    """Return the first moment of the `unit` that holds `value`."""
    match unit:
        case "MILLISECOND":
            return value.replace(microsecond=value.microsecond // 1000 * 1000)
        case "SECOND":
            return value.replace(microsecond=0)
        case "MINUTE":
            return value.replace(second=0, microsecond=0)
        case "HOUR":
            return value.replace(minute=0, second=0, microsecond=0)
        case "DAY":
            return midnight(value)
        case _:
            return midnight(truncate_date(value.date(), unit))
