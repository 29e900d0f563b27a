"""The number of connections, bounded by the files that the process may open.

Place on the data path: beside the server, when it starts. A connection is an open file. If files run out,
accepting fails: asyncio logs a traceback for each attempt and stops listening for a second, and libuv
closes new connections silently. So the number of connections stays below that.

Invariant: below the limit there is room for a burst of connections that were accepted and not yet admitted,
and for the files that the rest of the process opens meanwhile.
"""

import errno
import logging
import os
import resource
from asyncio import AbstractEventLoop
from typing import Any

from millpond.errors import OptionError

ACCEPTED_AT_ONCE = 8
"""How many connections asyncio accepts in one turn of its loop; it admits them a few turns later."""

_SPARE_FILES = 96
_FDS = "/dev/fd"

log = logging.getLogger("millpond.serving")


def allow_open_files(connections: int) -> None:
    """Raise this process's limit on open files, as far as the system allows, to fit the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _open_files() + _SPARE_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def connections_allowed(wanted: int) -> int:
    """Return how many connections there may be: those wanted, or fewer (which is logged) if files do not suffice.

    Raises:
        OptionError: the files do not suffice for a single one.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    allowed = soft - _open_files() - _SPARE_FILES
    if allowed < 1:
        needed = soft - allowed + 1
        raise OptionError(
            f"this process may open {soft} files, and a server needs at least {needed}. Raise the limit: ulimit -n."
        )
    if allowed < wanted:
        fields = {"max_connections": wanted, "allowed": allowed, "open_files_limit": soft}
        log.warning("fewer connections than wanted: raise the limit of open files", extra={"fields": fields})
    return min(wanted, allowed)


def report_refused_accepts(loop: AbstractEventLoop) -> None:
    """Make the loop log one line, and no traceback, when it cannot accept a connection."""

    def report(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            log.error("a connection was not accepted", extra={"fields": {"reason": os.strerror(error.errno)}})
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(report)


def _open_files() -> int:
    return len(os.listdir(_FDS))  # noqa: PTH208 - only names are needed, no paths
