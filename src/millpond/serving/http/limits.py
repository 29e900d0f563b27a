"""Limits on one caller of the service: sizes, counts and times.

Place on the data path: read by the app, the connections and the server. Invariant: each limit is checked
before the work that it bounds, so a request beyond it costs no more than its refusal.
"""

import msgspec

from millpond.errors import OptionError


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one process of the service; each is a positive number.

    Attributes:
        max_body_bytes: the largest body of a call; beyond it 413.
        max_head_bytes: the largest request line and headers of a call; beyond it 431.
        max_requests: how many requests a call may carry, or rows of an Arrow table; beyond it 400.
        max_features: how many features a call may name; beyond it 400.
        max_in_flight: how many fetches run at once; beyond it 429.
        max_connections: how many connections may be open. One more closes those that were idle longest.
        timeout_ms: how long a call may take; beyond it 503, or 408 if its body did not come in time.
        head_timeout_ms: how long a new connection may take to send the head of its first call.
        idle_timeout_ms: how long a connection may stay open between two calls.
        drain_ms: how long calls in flight may take to end once the server is told to stop.

    >>> Limits(max_requests=50).max_requests
    50
    >>> Limits(max_requests=0)
    Traceback (most recent call last):
    millpond.errors.OptionError: max_requests is 0; a whole number from 1 on is needed.
    """

    max_body_bytes: int = 1 << 20
    max_head_bytes: int = 16 << 10
    max_requests: int = 1_000
    max_features: int = 1_000
    max_in_flight: int = 256
    max_connections: int = 10_000
    timeout_ms: int = 10_000
    head_timeout_ms: int = 10_000
    idle_timeout_ms: int = 75_000
    drain_ms: int = 5_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise OptionError(f"{name} is {value!r}; a whole number from 1 on is needed.")
