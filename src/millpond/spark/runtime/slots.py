"""The shards in a state host's memory. One attempt at a time holds a shard.

Spark may run a shard's batch again while the first attempt still runs: the first may be a zombie of a
stopped query, or the second a speculative copy or a retry. The latest attempt, by Spark's task attempt id,
takes the slot's lease. The earlier one sees at its next key that it was superseded, and its changes are
rolled back before the later one begins.

Invariant: only one thread at a time is inside `Slot.held`, and only it uses the slot's shard.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from millpond.errors import UnavailableError
from millpond.spark.spec.lease import Attempt, Lease

LEASE_SECONDS = 60.0


class Closable(Protocol):
    """What a slot can hold."""

    def close(self) -> None:
        """Free its resources."""
        ...


Held = TypeVar("Held", bound=Closable)


class Slot(Generic[Held]):
    """Holds one shard. `shard` is None until an attempt has restored it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.shard: Held | None = None
        self.users = 0
        self._now = now
        self._lock = threading.Lock()
        self._leases = threading.Lock()
        self._latest = Lease(Attempt("", -1))
        self._last_used = now()

    @contextmanager
    def held(self, attempt: Attempt, interrupt: Callable[[], None] = lambda: None) -> Iterator[Lease]:
        """Lease the slot for an attempt, wait until the previous attempt releases it, and hold it.

        `interrupt` is called when a later attempt takes the lease. It must end any wait for the worker.
        """
        lease, earlier = self._lease(attempt, interrupt)
        if not self._lock.acquire(timeout=LEASE_SECONDS):
            raise UnavailableError(
                f"the shard is still held by {earlier} after {LEASE_SECONDS:.0f} s: a single call of the processor "
                "seems to take that long. Spark runs the batch again."
            )
        try:
            if lease.superseded_by:
                lease.refuse()
            yield lease
        finally:
            self._last_used = self._now()
            self._lock.release()

    def drop(self) -> None:
        """Close the shard and remove it, so that the next attempt restores. Call it only while holding the slot."""
        shard, self.shard = self.shard, None
        if shard is not None:
            shard.close()

    def drop_if_free(self) -> None:
        """Drop the shard, unless an attempt holds the slot."""
        if self._lock.acquire(blocking=False):
            try:
                self.drop()
            finally:
                self._lock.release()

    def used_since(self, limit: float) -> bool:
        """Whether an attempt released the slot at `limit` or later."""
        return self._last_used >= limit

    def _lease(self, attempt: Attempt, interrupt: Callable[[], None]) -> tuple[Lease, Attempt]:
        lease = Lease(attempt, interrupt)
        with self._leases:
            earlier = self._latest
            if attempt.application == earlier.attempt.application and attempt.order < earlier.attempt.order:
                lease.superseded_by = earlier.attempt
                lease.refuse()
            earlier.supersede(attempt)
            self._latest = lease
        return lease, earlier.attempt

    @contextmanager
    def idle(self, attempt: Attempt) -> Iterator[Held | None]:
        """Hold the slot's shard if nobody else does and the attempt is still the latest. Otherwise yield None."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            yield self.shard if self._latest.attempt == attempt else None
        finally:
            self._lock.release()


class Slots(Generic[Held]):
    """All slots of a host, by lineage. A slot that was not used for `idle_seconds` is dropped: it is a cache.

    Invariant: a slot stays in the table while it is used. A shard restored into a slot that was removed
    could not be reached again, and would never be closed.
    """

    def __init__(self, now: Callable[[], float], idle_seconds: float) -> None:
        self._now = now
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._slots: dict[str, Slot[Held]] = {}

    @contextmanager
    def using(self, lineage: str, *, comes_again: bool = True) -> Iterator[Slot[Held]]:
        """Yield the slot of a lineage and keep it in the table meanwhile.

        With `comes_again=False` the slot is dropped when its last user leaves.
        """
        with self._lock:
            slot = self._slots.setdefault(lineage, Slot(self._now))
            slot.users += 1
        try:
            yield slot
        finally:
            with self._lock:
                slot.users -= 1
                if not comes_again and not slot.users:
                    self._slots.pop(lineage).drop()

    def drop_idle(self) -> int:
        """Drop the slots that were not used for `idle_seconds`. Return how many are left."""
        limit = self._now() - self._idle_seconds
        return self._drop(lambda slot: not slot.used_since(limit))

    def drop_unused(self) -> int:
        """Drop every slot that is not in use, to free memory. Return how many are left."""
        return self._drop(lambda _: True)

    def close(self) -> None:
        """Close every shard that no attempt holds. Called when the host ends."""
        with self._lock:
            for slot in self._slots.values():
                slot.drop_if_free()

    def _drop(self, chosen: Callable[[Slot[Held]], bool]) -> int:
        with self._lock:
            for lineage in [lineage for lineage, slot in self._slots.items() if not slot.users and chosen(slot)]:
                self._slots.pop(lineage).drop()
            return len(self._slots)
