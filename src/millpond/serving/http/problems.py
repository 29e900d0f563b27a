"""Every failure that the service answers with: its code, its status, and its error in Python.

Place on the data path: used by the app to answer, by the clients to raise, and by the OpenAPI document.
Invariant: a failure is `{"error": {"code", "message"}}`. Its status says what to do. 4xx: change the call. 429 and
503: try again after `Retry-After` seconds. 500: report it to whoever runs the service.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from millpond.errors import (
    CorruptionError,
    DataError,
    MillpondError,
    OptionError,
    UnavailableError,
)


class Kind(NamedTuple):
    """The meaning of a code: the status, and the error that a client raises."""

    status: int
    error: type[MillpondError]


KINDS: dict[str, Kind] = {
    "bad_request": Kind(400, DataError),
    "bad_option": Kind(400, OptionError),
    "unauthorized": Kind(401, OptionError),
    "not_served": Kind(404, OptionError),
    "not_found": Kind(404, OptionError),
    "method_not_allowed": Kind(405, OptionError),
    "not_acceptable": Kind(406, OptionError),
    "too_slow": Kind(408, UnavailableError),
    "too_large": Kind(413, DataError),
    "unsupported_media_type": Kind(415, OptionError),
    "too_many_calls": Kind(429, UnavailableError),
    "head_too_large": Kind(431, OptionError),
    "internal": Kind(500, MillpondError),
    "corrupt": Kind(500, CorruptionError),
    "unavailable": Kind(503, UnavailableError),
    "timed_out": Kind(503, UnavailableError),
    "not_ready": Kind(503, UnavailableError),
}
"""All codes."""

RETRY_AFTER_SECONDS = 1
"""The value of `Retry-After` in every answer to a call that may be tried again."""

RETRIED = frozenset({429, 503})
"""The statuses that come with `Retry-After`."""

_CODES: tuple[tuple[type[MillpondError], str], ...] = (
    (DataError, "bad_request"),
    (OptionError, "bad_option"),
    (UnavailableError, "unavailable"),
    (CorruptionError, "corrupt"),
    (MillpondError, "internal"),
)
"""The code of each kind of error that a fetcher raises; the first that fits is used."""


class Problem(msgspec.Struct):
    """Why a call failed."""

    code: str
    message: str


class Failure(msgspec.Struct):
    """The body of every answer that is a failure."""

    error: Problem


class RefusedError(Exception):
    """Ends a call with a failure.

    Args:
        code: one of `KINDS`.
        message: what was expected, what was found, and how to mend it.
        closing: whether more of the body may come, so that the connection must be closed.
        headers: further headers of the answer.
    """

    def __init__(
        self, code: str, message: str, *, closing: bool = False, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.closing = closing
        self.headers = headers


def code_of(error: MillpondError) -> str:
    """Return the code of an error that a fetcher raises.

    >>> code_of(DataError("key 'origin' is missing"))
    'bad_request'
    """
    return next(code for kind, code in _CODES if isinstance(error, kind))
