"""The shards in a state host's memory, each held by one attempt at a time.

Spark may run a shard's batch again while the first attempt still runs: a zombie of a stopped query,
a speculative copy, a retry. The latest attempt (by Spark's task attempt id) gets the shard: it takes the slot's lease,
the earlier one finds at its next key that the slot is no longer its own, and what it changed is
rolled back before the later one begins.

Invariant: whoever is inside `Slot.held` is alone with the slot's shard.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from millpond.errors import UnavailableError
from millpond.spark.spec.lease import Attempt, Lease

LEASE_SECONDS = 60.0


class Closable(Protocol):
    """What a slot holds."""

    def close(self) -> None:
        """Free it."""
        ...


Held = TypeVar("Held", bound=Closable)


class Slot(Generic[Held]):
    """One shard's place. `shard` is None until somebody has restored it."""

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
        """Lease the slot for an attempt, wait for the one before it to let go, and hold it.

        `interrupt` is called when a later attempt takes it; it must end any wait for the worker.
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
        """Close the shard and forget it: the next attempt restores. Only for who holds the slot."""
        shard, self.shard = self.shard, None
        if shard is not None:
            shard.close()

    def drop_if_free(self) -> None:
        """`drop`, unless somebody holds the slot."""
        if self._lock.acquire(blocking=False):
            try:
                self.drop()
            finally:
                self._lock.release()

    def used_since(self, limit: float) -> bool:
        """Whether anybody has held the slot since then."""
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
        """Hold the slot's shard if the attempt is still the latest and nobody has it; else None."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            yield self.shard if self._latest.attempt == attempt else None
        finally:
            self._lock.release()


class Slots(Generic[Held]):
    """All slots of a host, by lineage. What nobody used for `idle_seconds` is dropped: it is a cache.

    Invariant: a slot that somebody uses stays in the table. Whoever restored a shard into one that had
    been dropped meanwhile would leave it open, and out of reach, for ever.
    """

    def __init__(self, now: Callable[[], float], idle_seconds: float) -> None:
        self._now = now
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._slots: dict[str, Slot[Held]] = {}

    @contextmanager
    def using(self, lineage: str, *, comes_again: bool = True) -> Iterator[Slot[Held]]:
        """The slot of a lineage, which is not dropped meanwhile; then at once, if nobody comes again."""
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
        """Forget slots that were not used for long; how many are left."""
        limit = self._now() - self._idle_seconds
        return self._drop(lambda slot: not slot.used_since(limit))

    def drop_unused(self) -> int:
        """Forget every slot that nobody uses right now, to free memory; how many are left."""
        return self._drop(lambda _: True)

    def close(self) -> None:
        """Close every shard that nobody holds. For the host's end."""
        with self._lock:
            for slot in self._slots.values():
                slot.drop_if_free()

    def _drop(self, chosen: Callable[[Slot[Held]], bool]) -> int:
        with self._lock:
            for lineage in [lineage for lineage, slot in self._slots.items() if not slot.users and chosen(slot)]:
                self._slots.pop(lineage).drop()
            return len(self._slots)
