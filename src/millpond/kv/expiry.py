"""The clock by which rows expire.

Rows outlive the process that wrote them, so their age is measured by the wall clock. A clock that is wrong
by minutes removes rows that much too early or too late: give `ttl_ms` a margin of hours.
"""

import time


def wall_ms() -> int:
    """Return milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - an adapter: stores take it as their default clock
