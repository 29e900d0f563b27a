"""A read of one key in progress, which other fetches may wait for (single flight).

Place on the data path: made for each key that is read for the caches, and kept in `ServedGroup.flights` until the
read ends. Few flights are waited for, so the `Future` is made only for the first waiter: making and completing it
costs more than the other bookkeeping of such a read.
"""

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.serving.reads.key_read import KeyData


class Flight:
    """One read in progress; safe to use from several threads.

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
        """End the read: waiters continue with `data`, or read the key themselves if it is None.

        Only the first call has an effect.
        """
        with self._lock:
            if self._is_over:
                return
            self._is_over, self._data, future = True, data, self._future
        if future is not None:
            future.set_result(data)

    def future(self) -> "Future[KeyData | None]":
        """Return a future that completes when the read ends."""
        with self._lock:
            future = self._future
            if future is None:
                future = self._future = Future()
                if self._is_over:
                    future.set_result(self._data)
            return future
