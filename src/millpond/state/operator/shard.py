"""One shard of a running operator: its backend, its own instance of the operator, and its timers.

On the data path this stands between the harness, which knows times and records, and the backend, which knows cells.
It has one job: before user code runs for a key, that key is made current.

Invariant: `entered` is the key group to which the backend's handles are bound, or None if that is unknown. So
consecutive records of one key group enter it once.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from millpond.errors import OptionError
from millpond.state.backend.expiry import alive, without_times
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.backend.timer_queue import DueTimer
from millpond.state.operator.operator import Context, KeyedOperator, TimeDomain, Timer, Times, check_operator
from millpond.state.operator.states import States
from millpond.state.operator.timers import Timers
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.key_types import given_form
from millpond.state.types.timer_states import PROCESSING_TIMERS, TIMERS
from millpond.state.wrappers.cached_values import CachedValues
from millpond.suggestions import did_you_mean


class OperatorShard:
    """An operator over one shard's backend.

    Attributes:
        backend: the state, with the caches that the operator chose for its states.
        key_groups: of this shard.
        descriptors: of every state that the operator declared, its timers included, by name.
        entered: the key group that is entered, or None.
        key_context: the backend's context, with the current key.
        context: the context that the operator is given.
        process: the operator's method.
    """

    def __init__(
        self, make_operator: Callable[[], KeyedOperator], backend: KeyedStateBackend, key_groups: range, times: Times
    ) -> None:
        self.backend = backend if isinstance(backend, CachedValues) else CachedValues(backend)
        self.key_groups = key_groups
        self.descriptors: dict[str, StateDescriptor] = {}
        self.entered: int | None = None
        self.key_context: KeyContext = backend.context
        self._timers: dict[TimeDomain, Timers] = {}
        try:
            operator = make_operator()
            check_operator(operator)
            self.process: Callable[[Any, Any, Context], Iterable[Any] | None] = operator.process
            self._on_timer = getattr(operator, "on_timer", None)
            operator.open(States(self.backend, self._declared))
            self.context = self._context(type(operator).__name__, times)
        except BaseException:
            backend.close()
            raise

    def _context(self, operator: str, times: Times) -> Context:
        """Declare timer states only for an operator that handles timers: each state makes `enter` a little slower."""
        if self._on_timer is None:
            return Context(times, _NoTimers(operator), _NoTimers(operator))
        for domain, descriptor in ((TimeDomain.EVENT, TIMERS), (TimeDomain.PROCESSING, PROCESSING_TIMERS)):
            self._declared(descriptor)
            self._timers[domain] = Timers(self.backend, self.key_groups, descriptor)
        return Context(times, self._timers[TimeDomain.EVENT], self._timers[TimeDomain.PROCESSING])

    def _declared(self, descriptor: StateDescriptor) -> None:
        self.descriptors[descriptor.name] = descriptor

    def enter(self, key_group: int) -> None:
        """Enter a key group, unless it is entered already."""
        if self.entered != key_group:
            self.entered = None
            self.backend.enter(key_group)
            self.entered = key_group

    def due(self, domain: TimeDomain, limit_ms: int) -> Iterable[DueTimer]:
        """Return the due timers, in the order of time. Iterate over them once."""
        timers = self._timers.get(domain)
        if timers is None:
            return []
        return timers.due(limit_ms)

    def fire(self, domain: TimeDomain, due: DueTimer) -> Iterable[Any]:
        """Call the operator for one timer, then delete it. If it was set again for the same time, that is lost too.

        PySpark does the same. A timer that an earlier handler in this advance of time deleted does not fire, as in
        Flink.
        """
        self.enter(due.key_group)
        self.key_context.key = due.key
        timers = self._timers[domain]
        if self._on_timer is not None and timers.contains(due.expiry_ms):
            yield from self._on_timer(given_form(due.key), Timer(due.expiry_ms, domain), self.context) or ()
            timers.delete(due.expiry_ms)

    def state(self, name: str) -> dict[Any, Any]:
        """Return a state's value of every key now, as users know it, without expired values."""
        descriptor = self.descriptors.get(name)
        if descriptor is None:
            known = sorted(self.descriptors)
            raise OptionError(f"there is no state {name!r}; the operator declared {known}{did_you_mean(name, known)}")
        found: dict[Any, Any] = {}
        for key_group in self.key_groups:
            cells = self.backend.cells(name, key_group)
            if descriptor.ttl is not None:
                cells = without_times(alive(cells, descriptor.ttl, self.key_context.now_ms), descriptor.kind)
            keys = map(given_form, cells.keys)
            if cells.map_keys is None:
                found |= zip(keys, cells.values, strict=True)
            else:
                for key, map_key, value in zip(keys, cells.map_keys, cells.values, strict=True):
                    found.setdefault(key, {})[given_form(map_key)] = value
        return found

    def temperatures(self) -> pa.Table:
        """Return the map of key groups by temperature. Raises OptionError if the backend has none."""
        found = self.backend.temperatures()
        if found is None:
            raise OptionError(
                "this state backend moves no key groups, and so has no map of them. Set state.backend.type = spillable."
            )
        return found

    def move_state(self, shards: "Sequence[OperatorShard]") -> None:
        """Copy all state, as it is now, to the new shards, each key group to its shard. They were just opened."""
        for shard in shards:
            for key_group in self.key_groups:
                if key_group in shard.key_groups:
                    for name, descriptor in self.descriptors.items():
                        # A restored state that nobody declares is copied as it is.
                        wanted = shard.descriptors.setdefault(name, descriptor)
                        shard.backend.load(wanted, self.backend.cells(name, key_group))
            shard.undone()

    def committed(self) -> None:
        """Take note of a commit: no key is current."""
        self.entered = None

    def undone(self) -> None:
        """Take note that the state was undone or restored: no key is current, and timers are read anew."""
        self.entered = None
        for timers in self._timers.values():
            timers.forget_queue()

    def close(self) -> None:
        """Free the state. Idempotent."""
        for timers in self._timers.values():
            timers.forget_queue()
        self.backend.close()


class _NoTimers:
    """The timers of an operator without `on_timer`. Every use raises an OptionError."""

    def __init__(self, operator: str) -> None:
        self._operator = operator

    def _refuse(self, expiry_ms: int = 0) -> NoReturn:
        raise OptionError(
            f"{self._operator} uses a timer (at {expiry_ms} ms) but has no on_timer(key, timer, context) to be called "
            "when it is due. Write one."
        )

    register = delete = of_key = _refuse
