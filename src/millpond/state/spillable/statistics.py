"""The statistics of one backend: how much of its state is on the heap and on disk, and how busy each key group is.

Place on the data path: beside it. The monitor chooses key groups by them, and users and metrics read them. Counting
visits every key group, so it runs between batches of records and on request. Sizes on the heap are estimates
(`accounting`). Sizes on disk are exact, from the file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millpond.state.spillable.accounting import SLOT_BYTES, RequestRates
from millpond.state.spillable.migration import SpilledState, heap_bytes
from millpond.state.spillable.migrator import Migrator
from millpond.state.spillable.policy import GroupLoad

TEMPERATURES = pa.schema(
    [
        pa.field("key_group", pa.int32(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("rate", pa.float64(), nullable=False),
    ]
)
"""The map of key groups by temperature: one row per key group and state.

`place` is "heap" or "disk", and `path` is the folder of the spill file. `bytes` is an estimate for the heap. For the
disk it is the key group's pages in the file, divided among its states by what was written of each. `rate` is the
request rate of the key group over all states: its requests, each of which counts half after a minute."""


@dataclass(frozen=True)
class SpillStats:
    """The sizes of a backend's state on the heap and on disk, and the cost of moves since the backend was made.

    Attributes:
        heap_groups: key groups with state on the heap.
        heap_bytes: approximate bytes of state on the heap.
        disk_groups: key groups on disk.
        disk_bytes: bytes of their pages.
        spills: key groups that were spilled.
        loads: key groups that were loaded.
        failures: moves and writes that failed; the state stayed where it was.
        spill_seconds: time spent on spilling, and on writing changed cells of key groups on disk.
        load_seconds: time spent on loading.
        longest_block_ms: the longest time that one maintenance run delayed the stream.
        reason: the reason of the last pass; "" before the first.
    """

    heap_groups: int
    heap_bytes: int
    disk_groups: int
    disk_bytes: int
    spills: int
    loads: int
    failures: int
    spill_seconds: float
    load_seconds: float
    longest_block_ms: float
    reason: str


class Statistics:
    """Counts the state of one backend.

    Attributes:
        entered: the requests of each key group since the rates last decayed; the backend adds to it.
        heap_bytes: approximate bytes on the heap at the last count: key groups, and changed cells of key groups on disk
            that are not written yet.
    """

    def __init__(
        self,
        key_groups: range,
        states: Mapping[str, SpilledState],
        migrator: Migrator,
        clock_ms: Callable[[], int],
    ) -> None:
        self._key_groups = key_groups
        self._states = states
        self._migrator = migrator
        self._clock_ms = clock_ms
        self._rates = RequestRates(key_groups, clock_ms())
        self.entered = self._rates.entered
        self.add_changes = self._rates.add_changes
        self.heap_bytes = 0

    def count(self) -> None:
        """Update `heap_bytes` and the request rates."""
        self._rates.decay(self._clock_ms())
        on_heap = sum(sum(map(state.sizes.bytes_of, self._key_groups)) for state in self._states.values())
        self.heap_bytes = on_heap + self.buffered_bytes()

    def buffered_bytes(self) -> int:
        """Return the approximate bytes of changed cells of key groups on disk that are not written yet."""
        if not self._migrator.spilled:
            return 0
        return int(self._migrator.changed_cells() * max([SLOT_BYTES, *self._means()]))

    def _means(self) -> list[float]:
        """Return the mean bytes of the keys of each state that was sampled."""
        return [mean for state in list(self._states.values()) if (mean := state.sizes.mean.value)]

    def heap_groups(self, owner: object) -> list[GroupLoad]:
        """Return the key groups on the heap."""
        # The caller may be another backend's thread. Meanwhile a request may be counted, which is lost, or a state
        # declared.
        self._rates.decay(self._clock_ms())
        states = list(self._states.values())
        return [
            GroupLoad(key_group, owner, heap_bytes(states, key_group), self._rates.of(key_group))
            for key_group in self._key_groups
            if key_group not in self._migrator.spilled
        ]

    def disk_groups(self, owner: object) -> list[GroupLoad]:
        """Return the key groups on disk, with the bytes that they would take on the heap."""
        self._rates.decay(self._clock_ms())
        means = self._means()
        mean = sum(means) / len(means) if means else SLOT_BYTES
        return [
            GroupLoad(key_group, owner, spilled.heap_bytes_now(mean), self._rates.of(key_group))
            for key_group, spilled in list(self._migrator.spilled.items())
        ]

    def stats(self, longest_block_ns: int) -> SpillStats:
        """Count, and return the statistics."""
        self.count()
        migrator, on_disk = self._migrator, self._migrator.disk_bytes()
        return SpillStats(
            heap_groups=len([group for group in self.heap_groups(self) if group.heap_bytes]),
            heap_bytes=self.heap_bytes,
            disk_groups=len(on_disk),
            disk_bytes=sum(on_disk.values()),
            spills=migrator.spills,
            loads=migrator.loads,
            failures=migrator.failures,
            spill_seconds=migrator.spill_ns / 1e9,
            load_seconds=migrator.load_ns / 1e9,
            longest_block_ms=longest_block_ns / 1e6,
            reason=migrator.reason,
        )

    def temperatures(self) -> pa.Table:
        """Return every key group and state as a table with the schema `TEMPERATURES`."""
        self._rates.decay(self._clock_ms())
        on_disk = self._migrator.disk_bytes()
        rows = []
        for key_group in self._key_groups:
            spilled, rate = self._migrator.spilled.get(key_group), self._rates.of(key_group)
            if spilled is None:
                sizes = [state.sizes.bytes_of(key_group) for state in self._states.values()]
                place: tuple[str, str | None] = ("heap", None)
            else:
                tables: list[Any] = [state.heap.tables.live[key_group] for state in self._states.values()]
                written = [table.bytes_now() for table in tables]
                whole = sum(written) or 1.0
                sizes = [int(on_disk[key_group] * each / whole) for each in written]
                place = ("disk", str(spilled.file.folder))
            rows += [(key_group, name, *place, size, rate) for name, size in zip(self._states, sizes, strict=True)]
        columns = zip(*rows, strict=True) if rows else [()] * len(TEMPERATURES)
        return pa.table([list(column) for column in columns], schema=TEMPERATURES)
