"""Ends a serving process whose store blocks a thread.

Place on the data path: beside the server; for a process that only serves.

A call to a store that hangs runs on a thread that nothing can stop, and Python waits for its threads when
it exits. So whoever told the process to stop would wait as long as the store hangs. Once the calls have had
their time to end, this module ends the process without that wait.

Trade-off: answers that the answer log has not written by then are lost. The store itself is as safe as after a kill.
"""

import logging
import os
import threading
from collections.abc import Callable

GRACE_SECONDS = 2.0
"""How long after the drain time the process may take to close its log and its store."""

_EXIT_CODE = 1

log = logging.getLogger("millpond.serving")


def end_within(drain_ms: int, *, end: Callable[[int], object] = os._exit) -> None:
    """Start a daemon thread that ends the process with code 1 if it still runs after drain time and grace."""
    thread = threading.Timer(drain_ms / 1_000 + GRACE_SECONDS, _end, (drain_ms, end))
    thread.daemon = True
    thread.start()


def _end(drain_ms: int, end: Callable[[int], object]) -> None:
    log.error(
        "the process is ended: something, most likely a call to the store, was not over in time",
        extra={"fields": {"drain_ms": drain_ms}},
    )
    for handler in logging.getLogger("millpond").handlers:
        handler.flush()
    end(_EXIT_CODE)
