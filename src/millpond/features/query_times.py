"""What is wrong with the time of a query: of a request online, of a row offline.

A caller asks here once it has found that a time is none that can be answered.
"""

from millpond.errors import DataError
from millpond.features.stored.rows import MAX_QUERY_MS

_LAST_MICROSECONDS = MAX_QUERY_MS * 1000


SEVENTIES_END_MS = 315_532_800_000
"""The start of 1980. Times of today are before it if they are in seconds."""


def refused_time(name: str, at: object, what: str = "at") -> DataError:
    """Return the error for a time that is no whole number, or too late to be in milliseconds.

    >>> print(refused_time("route", 1_388_361_600_000_000))
    'route': at is 1388361600000000, beyond the year 2499; expected milliseconds since 1970 UTC: this looks like \
microseconds, so divide it by 1000

    Args:
        name: the GroupBy or Join that was asked for.
        at: the time, which is refused.
        what: what holds it: the request's ``at``, or a column of the queries.
    """
    if type(at) is int:
        unit, factor = ("microseconds", "1000") if at < _LAST_MICROSECONDS else ("nanoseconds", "1_000_000")
        return DataError(
            f"{name!r}: {what} is {at}, beyond the year 2499; expected milliseconds since 1970 UTC: this looks like "
            f"{unit}, so divide it by {factor}"
        )
    mend = "pass int(moment.timestamp() * 1000)" if hasattr(at, "timestamp") else "convert it to an int"
    return DataError(f"{name!r}: {what} is {at!r}; expected whole milliseconds since 1970 UTC as an int: {mend}")
