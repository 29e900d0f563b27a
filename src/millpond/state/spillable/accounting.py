"""Estimates the memory and the request rate of each key group on the heap.

Place on the data path: beside it. Both are estimated once a version and between batches of records, not per record:

- *Size*: the deep size of every n-th cell that a version changed or a restore loaded is measured. A group's size is the
  mean size times its number of keys, for each state. The mean is that of the state in the group if it was sampled
  there, else that of the state. The sizes serve to compare groups, so they need not be exact.
- *Rate*: how often the group was entered and its cells changed, with counts that halve every half-life.

On disk the size is exact: the pages that the file has for the group (`SpillFile.size`).

Source: FLIP-50, KeyGroupSizeAccountingManager (which estimates as Lucene's RamUsageEstimator does).
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from millpond.cache.weight import ENTRY_BYTES, deep_size
from millpond.state.backend.protocols import ABSENT, Cells
from millpond.state.heap.states import HeapState
from millpond.state.heap.versions import Version
from millpond.state.types.descriptor import StateKind
from millpond.state.types.key_types import given_form

SAMPLE_EVERY = 61
"""One in this many of the cells that a version changes is weighed."""

SLOT_BYTES = 64
"""Approximate bytes that a dictionary takes per entry: between a third and two thirds of its slots are in use."""

HALF_LIFE_MS = 60_000
"""The time in which the rate of an unused group halves."""

_MOST_SAMPLES = 32
"""The most samples of one state in one version. Weighing costs some microseconds a cell."""

_MOST_ENTRIES = 8
"""The most entries weighed in the map of one key."""

_WEIGHT_OF_NEW = 0.2


class Mean:
    """An exponential moving average: older samples count less and less. 0.0 before the first sample."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, sample: float) -> None:
        """Add a sample."""
        self.value = sample if not self.value else self.value + _WEIGHT_OF_NEW * (sample - self.value)


class StateSizes:
    """The mean bytes that a key of one state takes with its cells: over all key groups, and in each sampled group."""

    def __init__(self, state: HeapState) -> None:
        self.mean = Mean()
        self._tables = state.tables
        self._is_map = state.descriptor.kind is StateKind.MAP
        self._of_group: dict[int, Mean] = {}

    def weigh_changes(self) -> None:
        """Take samples of what the open version changed on the heap."""
        tables = self._tables
        left = _MOST_SAMPLES
        for key_group, key in tables.open.sampled(SAMPLE_EVERY):
            table = tables.live.get(key_group)
            if type(table) is dict:
                left -= self._weigh(key_group, table, key)
                if left <= 0:
                    return

    def weigh_loaded(self, cells: Cells) -> None:
        """Take samples of what is being restored."""
        every = max(SAMPLE_EVERY, len(cells) // _MOST_SAMPLES)
        for key_group, key in islice(zip(cells.key_groups, cells.keys, strict=True), 0, None, every):
            table = self._tables.live.get(key_group)
            if type(table) is dict:
                self._weigh(key_group, table, given_form(key))

    def _weigh(self, key_group: int, table: Mapping[Any, Any], key: Any) -> int:
        """Weigh a key's cells, if it has any. Return the number of samples: 1 or 0."""
        value = table.get(key, ABSENT)
        if value is ABSENT:
            return 0
        weighed = _entries_bytes(key, value) if self._is_map else _cell_bytes(key, value)
        self.mean.add(weighed)
        self._of_group.setdefault(key_group, Mean()).add(weighed)
        return 1

    def bytes_of(self, key_group: int) -> int:
        """Return the estimated bytes of this state in a key group on the heap; 0 if the group is on disk."""
        table = self._tables.live.get(key_group)
        if type(table) is not dict or not table:
            return 0
        of_group = self._of_group.get(key_group)
        mean = of_group.value if of_group is not None and of_group.value else self.mean.value
        return int(len(table) * (mean or SLOT_BYTES))


class RequestRates:
    """The request rates of the key groups: numbers of requests that halve every half-life."""

    def __init__(self, key_groups: range, now_ms: int) -> None:
        self.entered = dict.fromkeys(key_groups, 0)
        """The requests of each key group since the last `decay`. The backend adds to it."""
        self._rates = dict.fromkeys(key_groups, 0.0)
        self._decayed_ms = now_ms

    def add_changes(self, versions: Iterable[Version]) -> None:
        """Count the changes of some versions."""
        for version in versions:
            for key_group, changes in version.changes().items():
                self.entered[key_group] += changes

    def decay(self, now_ms: int) -> None:
        """Reduce the rates by the time that passed, and add the requests counted since the last call."""
        kept = 0.5 ** ((now_ms - self._decayed_ms) / HALF_LIFE_MS)
        self._decayed_ms = now_ms
        rates, entered = self._rates, self.entered
        for key_group, count in entered.items():
            rates[key_group] = rates[key_group] * kept + count
        # In place, because the backend keeps a reference.
        entered.update(dict.fromkeys(entered, 0))

    def of(self, key_group: int) -> float:
        """Return the decayed number of requests of a key group."""
        return self._rates[key_group]


def _cell_bytes(key: Any, value: Any) -> int:
    return deep_size(key, value) - ENTRY_BYTES + SLOT_BYTES


def _entries_bytes(key: Any, entries: Mapping[Any, Any]) -> int:
    weighed = [_cell_bytes(map_key, value) for map_key, value in islice(entries.items(), _MOST_ENTRIES)]
    each = sum(weighed) / len(weighed) if weighed else 0
    return _cell_bytes(key, None) + int(each * len(entries))
