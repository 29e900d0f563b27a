"""Timers: times at which a key wants to be called, as durable as its state.

A key's timers are a map state of their own (expiry in ms -> true; see `types.timer_states`). So they are in the
same deltas and bases as the state, and undone by the same rollbacks. Beside it there is an order of time over all keys,
which finds the due timers without reading every key. It is the backend's own, or a queue in memory that is built from
the live cells, those of the open version included. So it is right at any time and on any backend.

Invariant: once it is built, the order holds exactly the timers in the state. Undoing a call puts timers back in both.
After the undo of a version or a restore, the order is discarded, and built again when it is next needed.

Times are event or processing time, in ms. The operator's time mode decides which; this module treats both alike.
"""

from collections.abc import Iterable, Iterator

from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.backend.timer_queue import DueTimer, TimersByTime
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.timer_states import TIMERS
from millpond.state.types.times import FIRST_MS, LAST_MS, checked_ms
from millpond.state.wrappers.undo import UndoableBackend


class Timers:
    """The timers of one shard. `register`, `delete`, `contains` and `of_key` are about the backend's current key."""

    def __init__(self, backend: KeyedStateBackend, key_groups: range, descriptor: StateDescriptor = TIMERS) -> None:
        self._backend = backend
        self._key_groups = key_groups
        self._name = descriptor.name
        self._state = backend.map_state(descriptor)
        self._undoable = backend if isinstance(backend, UndoableBackend) else None
        self._queue: TimersByTime | None = None

    def register(self, expiry_ms: int) -> None:
        """Set a timer of the current key. Setting it twice sets it once.

        Raises:
            OptionError: the time is not a whole number of ms, or needs more than 64 bits.
        """
        at_ms = self._checked(expiry_ms)
        if not self._state.contains((at_ms,)):
            self._note(at_ms, was_set=False)
            self._state.put((at_ms,), (True,))
            if self._queue is not None:
                self._queue.add(self._timer(at_ms))

    def delete(self, expiry_ms: int) -> None:
        """Delete a timer of the current key. Raises OptionError if no timer can have this time."""
        at_ms = self._checked(expiry_ms)
        if self._state.contains((at_ms,)):
            self._note(at_ms, was_set=True)
            self._state.remove((at_ms,))
            if self._queue is not None:
                self._queue.remove(self._timer(at_ms))

    def contains(self, expiry_ms: int) -> bool:
        """Return whether this timer of the current key is set."""
        return self._state.contains((expiry_ms,))

    def of_key(self) -> Iterator[int]:
        """Return the current key's timers, in ms, in ascending order."""
        return iter(sorted(expiry for (expiry,), _ in self._state.items()))

    def due(self, limit_ms: int) -> Iterable[DueTimer]:
        """Return every timer at or before the limit, in the order of time. Iterate over them once.

        They are the timers that are set now, whatever is set or deleted during the iteration. They stay set until they
        are deleted.
        """
        return self._built().up_to(limit_ms)

    def next_expiry_ms(self) -> int | None:
        """Return the time of the earliest timer, or None."""
        first = self._built().first()
        return None if first is None else first.expiry_ms

    def forget_queue(self) -> None:
        """Discard the order, because the state was undone or restored. It is built again when it is next needed."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def _checked(self, expiry_ms: int) -> int:
        # `checked_ms` needs a text, which is built only for a wrong time: records set timers.
        if type(expiry_ms) is int and FIRST_MS <= expiry_ms <= LAST_MS:
            return expiry_ms
        return checked_ms(expiry_ms, f"the time of a timer of key {self._backend.context.key!r}")

    def _timer(self, expiry_ms: int) -> DueTimer:
        context = self._backend.context
        return DueTimer(expiry_ms, context.key_group, context.key)

    def _note(self, expiry_ms: int, *, was_set: bool) -> None:
        """Have the queue restored if this call is undone. It is noted before the state is, so it is restored first."""
        call = None if self._undoable is None else self._undoable.call
        timer = self._timer(expiry_ms)
        if call is not None and not call.has(self, timer):
            call.note(self, timer, lambda: self._put_back(timer, was_set=was_set))

    def _put_back(self, timer: DueTimer, *, was_set: bool) -> None:
        if self._queue is not None and self.contains(timer.expiry_ms) != was_set:
            (self._queue.add if was_set else self._queue.remove)(timer)

    def _built(self) -> TimersByTime:
        if self._queue is None:
            self._queue = self._backend.timers_by_time(self._name, self._key_groups)
        return self._queue
