"""The monitor: decides when key groups are spilled and loaded, over all shards of a process.

Place on the data path: beside the backends. Each backend calls the monitor in its maintenance, every few milliseconds
of work, and reports the size of its state on the heap. The monitor measures the process. When a mark is passed, it
begins a *pass*: it chooses key groups of all backends and adds them to the backends' lists. The backends move them in
steps between their records.

- Memory in use at or above the high watermark: a pass spills a share of the state on the heap (`spill-size.ratio`).
- The mean pause of garbage collection over a check interval above its threshold: a pass spills the same share.
- Less state on the heap than `load-start.ratio` of the limit: a pass loads, up to `load-end.ratio`.

It decides every `check-interval`, and whenever memory in use has changed by 1/128 of the limit. Two passes are at least
`trigger-interval` apart. At or above the *hard mark*, halfway from the watermark to the limit, intervals do not apply,
and a pass spills everything above the watermark. So a burst cannot outrun the spilling.

Invariant: freed memory counts as free although the process does not shrink (`UsedMemory`), and loading depends only on
the estimated state on the heap. So a spill is not followed by another spill of the same bytes, nor by a load.

Source: FLIP-50, HeapStatusMonitor.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from millpond.cache import monotonic_ms
from millpond.errors import OptionError
from millpond.state.spillable.gc_pauses import GcPauses
from millpond.state.spillable.memory import ProcessMemory, UsedMemory, memory_limit_bytes
from millpond.state.spillable.options import SpillableSettings
from millpond.state.spillable.policy import GroupLoad, chosen_to_load, chosen_to_spill
from millpond.state.spillable.spill_file import FAULT_BYTES

if TYPE_CHECKING:
    from millpond.state.spillable.maintenance import Maintenance

_CHECKS_PER_LIMIT = 128
"""Memory is checked whenever it has changed by the limit divided by this."""

_MAPPED_SHARE = 16
"""Spill files may always have the limit divided by this mapped: one *part*. If they have more, their pages are unmapped
when less than one and a half parts of the limit are left. One part is for what may be mapped between two checks (half
by many touches, half by one write), and half a part is for growth.
"""

_FEWEST_TOUCHES = 16


class Monitor:
    """The monitor of one process.

    Args:
        limit_bytes: the memory that this process may use.
        read_bytes: returns the memory that it uses, without spill files.
        read_mapped_bytes: returns the bytes of spill files in memory, which the kernel reclaims when it needs them.
    """

    def __init__(
        self,
        settings: SpillableSettings,
        limit_bytes: int,
        read_bytes: Callable[[], int],
        read_mapped_bytes: Callable[[], int] = lambda: 0,
        clock_ms: Callable[[], int] = monotonic_ms,
        pauses: GcPauses | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.used = UsedMemory(read_bytes)
        self._settings = settings
        self._read_bytes = read_bytes
        self._read_mapped_bytes = read_mapped_bytes
        self._clock_ms = clock_ms
        self._pauses = pauses or GcPauses(time.perf_counter_ns)
        self._backends: WeakSet[Maintenance] = WeakSet()
        self._lock = threading.Lock()
        self._heap_bytes = 0
        self._checked_ms = self._pass_begun_ms = self._pauses_taken_ms = clock_ms()
        self._has_begun_pass = False
        self._checked_bytes = 0
        self.used_bytes = self.used.measure(0)
        if self.used_bytes >= limit_bytes:
            raise OptionError(
                f"state.backend.spillable.memory-limit leaves this process {limit_bytes:,} bytes, and it uses "
                f"{self.used_bytes:,} already, without any state. Give each process at least twice that."
            )
        if self.used_bytes > limit_bytes // 2:
            warnings.warn(
                f"state.backend.spillable.memory-limit leaves this process {limit_bytes:,} bytes, and it uses "
                f"{self.used_bytes:,} without any state: more than half. So nearly all state will be on disk, and a "
                f"burst may bring the process over its limit. Give each process at least {2 * self.used_bytes:,}.",
                RuntimeWarning,
                stacklevel=3,
            )

    @property
    def watermark_bytes(self) -> int:
        """Memory in use at or above this begins a pass that spills."""
        return int(self._settings.high_watermark_ratio * self.limit_bytes)

    @property
    def hard_mark_bytes(self) -> int:
        """Memory in use at or above this is urgent: intervals do not apply."""
        return int(self._settings.hard_mark_ratio * self.limit_bytes)

    @property
    def check_every_bytes(self) -> int:
        """Memory is checked again after this many written bytes, whatever the time."""
        return self.limit_bytes // _CHECKS_PER_LIMIT

    @property
    def is_urgent(self) -> bool:
        """Whether memory in use was at or above the hard mark at the last measurement."""
        return self.used_bytes >= self.hard_mark_bytes

    @property
    def most_touches(self) -> int:
        """The number of places in spill files that may be touched between two checks of the mapped bytes."""
        return max(_FEWEST_TOUCHES, self.limit_bytes // _MAPPED_SHARE // 2 // FAULT_BYTES)

    def check_mapped(self) -> None:
        """Forget the pages of all spill files if they bring the process close to its limit."""
        mapped, part = self._read_mapped_bytes(), self.limit_bytes // _MAPPED_SHARE
        if mapped > part and self._read_bytes() + mapped > self.limit_bytes - part - part // 2:
            with self._lock:
                backends = list(self._backends)
            # Not under the lock: this may wait for the lock of a file.
            for backend in backends:
                backend.forget_pages()

    def register(self, backend: "Maintenance") -> None:
        """Include the state of a backend."""
        with self._lock:
            self._backends.add(backend)

    def others(self, backend: "Maintenance") -> "list[Maintenance]":
        """Return the other backends that have planned moves."""
        with self._lock:
            return [other for other in self._backends if other is not backend and other.moving]

    def check(self) -> None:
        """Measure, and begin a pass if one is due."""
        with self._lock:
            heap_bytes = sum(backend.heap_bytes for backend in self._backends)
            change = heap_bytes - self._heap_bytes
            self._heap_bytes = heap_bytes
            self.used.freed(max(0, -change))
            self.used_bytes = self.used.measure(max(0, change))
            now_ms = self._clock_ms()
            if self._is_time(now_ms):
                self._checked_ms, self._checked_bytes = now_ms, self.used_bytes
                self._begin_pass_if_due(now_ms)

    def restored(self) -> None:
        """Begin a pass that loads what fits, after a restore, however much is on the heap."""
        with self._lock:
            self._begin_loading("restore", self._clock_ms())

    def _is_time(self, now_ms: int) -> bool:
        return (
            self.is_urgent
            or now_ms - self._checked_ms >= self._settings.check_interval_ms
            or abs(self.used_bytes - self._checked_bytes) >= self.check_every_bytes
        )

    def _begin_pass_if_due(self, now_ms: int) -> None:
        pauses_are_long = self._pauses_are_long(now_ms)
        if any(backend.moving for backend in self._backends):
            return
        if self.is_urgent:
            self._begin_spilling("memory above the hard mark", now_ms, self.used_bytes - self.watermark_bytes)
            return
        if self._has_begun_pass and now_ms - self._pass_begun_ms < self._settings.trigger_interval_ms:
            return
        if self.used_bytes >= self.watermark_bytes:
            self._begin_spilling("memory above the high watermark", now_ms)
        elif pauses_are_long:
            self._begin_spilling("garbage collection", now_ms)
        elif self._heap_bytes < self._settings.load_start_ratio * self.limit_bytes:
            self._begin_loading("little on the heap", now_ms)

    def _pauses_are_long(self, now_ms: int) -> bool:
        """Return whether a check interval has just passed whose mean pause was above the threshold."""
        if now_ms - self._pauses_taken_ms < self._settings.check_interval_ms:
            return False
        self._pauses_taken_ms = now_ms
        return self._pauses.take_mean_ms() > self._settings.gc_time_threshold_ms

    def _begin_spilling(self, reason: str, now_ms: int, at_least_bytes: int = 0) -> None:
        wanted = max(at_least_bytes, int(self._settings.spill_size_ratio * self._heap_bytes), 1)
        able = [backend for backend in self._backends if backend.may_spill()]
        chosen = chosen_to_spill((group for backend in able for group in backend.heap_groups()), wanted)
        self._tell(chosen, reason, now_ms, load=False)

    def _begin_loading(self, reason: str, now_ms: int) -> None:
        room = int(self._settings.load_end_ratio * self.limit_bytes) - self._heap_bytes
        # State loaded above the watermark would be spilled again.
        room = min(room, self.watermark_bytes - self.used_bytes)
        groups = [group for backend in self._backends for group in backend.disk_groups()]
        self._tell(chosen_to_load(groups, room), reason, now_ms, load=True)

    def _tell(self, chosen: list[GroupLoad], reason: str, now_ms: int, *, load: bool) -> None:
        if not chosen:
            return
        self._pass_begun_ms, self._has_begun_pass = now_ms, True
        for backend in list(self._backends):
            groups = [group.key_group for group in chosen if group.owner is backend]
            if groups:
                backend.move([] if load else groups, groups if load else [], reason)


_MONITORS: dict[tuple[int, SpillableSettings], Monitor] = {}
_MONITORS_LOCK = threading.Lock()


def process_monitor(settings: SpillableSettings) -> Monitor:
    """Return the monitor that all backends of this process with these settings share.

    Raises:
        OptionError: the memory limit is below what the process uses without state.
    """
    who = (os.getpid(), settings)
    with _MONITORS_LOCK:
        if who not in _MONITORS:
            limit = settings.memory_limit_bytes
            hosts = settings.hosts or os.cpu_count() or 1
            share = memory_limit_bytes(hosts) if limit is None else limit // hosts
            memory = ProcessMemory()
            _MONITORS[who] = Monitor(settings, share, memory, memory.mapped_bytes)
        return _MONITORS[who]
