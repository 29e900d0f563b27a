"""Bounded waiting until RocksDB accepts writes again.

RocksDB cannot accept writes while its write buffers are full and not flushed yet. By default it makes the writer
wait. If the disk is full, it waits until there is room, however long that takes, and cannot be interrupted. So
writes are made with `no_slowdown`, which turns a wait into an error, and the waiting is done here. It goes on while
RocksDB flushes or compacts without failing: that is a slow disk. It ends if nothing has run for a while, or if what
ran has failed or has no room.

After a disk was full, RocksDB checks for room every five seconds, and rejects writes until it finds some. So a write
that was rejected for lack of space, although there is space, is repeated too.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

IDLE_SECONDS = 3.0
"""How long a stalled RocksDB may do nothing before a write fails, if there is no room."""

RECOVERY_SECONDS = 8.0
"""How long a write waits for RocksDB to notice that there is room."""

_PAUSE_SECONDS = 0.001
_ERRORS = "rocksdb.background-errors"
_RUNNING = ("rocksdb.num-running-flushes", "rocksdb.num-running-compactions")


class Stalls:
    """Repeats writes that RocksDB rejected.

    Args:
        needed_bytes: free space with which RocksDB is expected to go on.
        counter: returns one of RocksDB's own counters, by name.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        folder: Path,
        needed_bytes: int,
        counter: Callable[[str], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._needed_bytes = needed_bytes
        self._counter = counter
        self._clock = clock
        self._pause = threading.Event()

    def outlast(self, error: Exception, write: Callable[[], Any]) -> Exception | None:
        """Repeat a write that failed with this error, as long as that may help. Return the last error, or None."""
        began, failures = self._clock(), self._counter(_ERRORS)
        worked = began
        while self._may_help(error, began, worked):
            self._pause.wait(_PAUSE_SECONDS)
            if self._has_room() and self._counter(_ERRORS) == failures and any(map(self._counter, _RUNNING)):
                worked = self._clock()
            try:
                write()
            except Exception as again:  # noqa: BLE001 - rocksdict raises no others
                error = again
            else:
                return None
        return error

    def _may_help(self, error: Exception, began: float, worked: float) -> bool:
        if is_stall(error):
            return self._clock() - worked < (RECOVERY_SECONDS if self._has_room() else IDLE_SECONDS)
        return is_out_of_space(error) and self._has_room() and self._clock() - began < RECOVERY_SECONDS

    def _has_room(self) -> bool:
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize > self._needed_bytes


def is_stall(error: Exception) -> bool:
    """Return whether RocksDB rejected a write because its buffers are full."""
    return "Write stall" in str(error)


def is_out_of_space(error: Exception) -> bool:
    """Return whether RocksDB reports a full disk: the one error from which it recovers by itself."""
    return "No space left" in str(error)


def is_full(error: Exception) -> bool:
    """Return whether RocksDB reports that the disk is full, or that no more may be written to it."""
    text = str(error)
    return is_out_of_space(error) or "File too large" in text or "quota" in text.lower()
