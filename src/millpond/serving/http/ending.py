"""The end of a serving process whose store holds on to a thread.

Place on the data path: beside the server; for a process that does nothing but serve.

A call to a store that hangs runs on a thread which nothing can stop, and Python waits for its threads when
it ends. So the one who told the process to stop would wait as long as the store hangs. Once calls had their
time to end, the process is ended without that wait.

Trade-off: what the answer log has not written by then is lost. The store itself is as safe as after a kill.
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
    """Begin to wait, on a thread that holds nothing up, and end the process with code 1 if it is still there."""
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
