"""A read of one key that is under way, for which others may wait.

Place on the data path: made for each key that is read for the caches, kept in `ServedGroup.flights` until it has been.
Few are waited for, so what one waits on is made for the first who does: making and ending it costs more than the rest
of the bookkeeping of such a read.
"""

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.serving.key_read import KeyData


class Flight:
    """One read; safe to use from several threads.

    >>> flight = Flight()
    >>> waited_for = flight.future()
    >>> flight.end(None)
    >>> waited_for.result() is flight.future().result() is None
    True
    """

    __slots__ = ("_data", "_future", "_is_over", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        self._data: KeyData | None = None
        self._future: Future[KeyData | None] | None = None

    def end(self, data: "KeyData | None") -> None:
        """Let those go on who wait, with what was read; None if they are to read it themselves.

        Only the first end counts.
        """
        with self._lock:
            if self._is_over:
                return
            self._is_over, self._data, future = True, data, self._future
        if future is not None:
            future.set_result(data)

    def future(self) -> "Future[KeyData | None]":
        """What is done when the read is over."""
        with self._lock:
            future = self._future
            if future is None:
                future = self._future = Future()
                if self._is_over:
                    future.set_result(self._data)
            return future
