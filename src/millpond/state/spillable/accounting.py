"""How much memory each key group takes, and how often it is asked for.

On the heap both are estimates, made once a version and between batches of records, not per record:

- *Size*: of every n-th cell that a version changed, or a restore loads, the deep size is taken. The mean of a state, or
  of a state in one key group where there were samples, times the number of keys, is the group's size. Comparing groups
  is what it is for, so it need not be exact.
- *Rate*: how often a group was entered, and how often its cells were changed, halved every half-life.

On disk the size is exact: the pages that the file has for the group.

Source: FLIP-50, KeyGroupSizeAccountingManager (which estimates as Lucene's RamUsageEstimator does).
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from millpond.cache.weight import ENTRY_BYTES, deep_size
from millpond.state.backend.protocols import ABSENT, Cells
from millpond.state.heap.versions import Version
from millpond.state.spillable.migration import SpilledState
from millpond.state.types.key_types import given_form

SAMPLE_EVERY = 61
"""Of so many cells that a version changes in a group, one is weighed."""

SLOT_BYTES = 64
"""What a dictionary takes per entry, about: between a third and two thirds of its places are in use."""

HALF_LIFE_MS = 60_000
"""In which a group that is not asked for any more loses half its rate."""

_MOST_SAMPLES = 32
"""Of one state in one version: weighing costs some microseconds a cell."""

_MOST_ENTRIES = 8
"""That are weighed of one key's map."""

_WEIGHT_OF_NEW = 0.2


class Mean:
    """A mean in which older samples count less and less."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, sample: float) -> None:
        """Take one more sample."""
        self.value = sample if not self.value else self.value + _WEIGHT_OF_NEW * (sample - self.value)


class StateSizes:
    """The mean bytes of one state's keys with all that is theirs, over all key groups and in each that was sampled."""

    def __init__(self, state: SpilledState) -> None:
        self.state = state
        self.mean = Mean()
        self._of_group: dict[int, Mean] = {}

    def weigh_changes(self) -> None:
        """Take samples of what the open version changed on the heap."""
        tables = self.state.heap.tables
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
            table = self.state.heap.tables.live.get(key_group)
            if type(table) is dict:
                self._weigh(key_group, table, given_form(key))

    def _weigh(self, key_group: int, table: Mapping[Any, Any], key: Any) -> int:
        """Take a sample; how many that were."""
        value = table.get(key, ABSENT)
        if value is ABSENT:
            return 0
        weighed = _entries_bytes(key, value) if self.state.is_map else _cell_bytes(key, value)
        self.mean.add(weighed)
        self._of_group.setdefault(key_group, Mean()).add(weighed)
        return 1

    def bytes_of(self, key_group: int) -> int:
        """What the group's cells of this state take on the heap; 0 where they are on disk."""
        table = self.state.heap.tables.live.get(key_group)
        if type(table) is not dict or not table:
            return 0
        of_group = self._of_group.get(key_group)
        mean = of_group.value if of_group is not None and of_group.value else self.mean.value
        return int(len(table) * (mean or SLOT_BYTES))


class HeapSizes:
    """What the key groups take on the heap, with all their states."""

    def __init__(self) -> None:
        self._of_state: dict[str, StateSizes] = {}

    def add(self, name: str, state: SpilledState) -> None:
        """Count a state too."""
        self._of_state[name] = StateSizes(state)

    def weigh_changes(self) -> None:
        """Take samples of what the open version changed on the heap."""
        for sizes in self._of_state.values():
            sizes.weigh_changes()

    def weigh_loaded(self, name: str, cells: Cells) -> None:
        """Take samples of what is being restored."""
        self._of_state[name].weigh_loaded(cells)

    def bytes_of(self, key_group: int) -> int:
        """What a key group takes on the heap; 0 where it is on disk."""
        return sum(sizes.bytes_of(key_group) for sizes in self._of_state.values())

    def bytes_of_all(self, key_groups: range) -> int:
        """What all of them take."""
        return sum(sum(map(sizes.bytes_of, key_groups)) for sizes in self._of_state.values())

    def bytes_of_state(self, name: str, key_group: int) -> int:
        """What one of them takes there."""
        return self._of_state[name].bytes_of(key_group)

    def means(self) -> list[float]:
        """The mean bytes of each state's keys; 0 of one that was not sampled yet."""
        return [sizes.mean.value for sizes in self._of_state.values()]

    def clear(self) -> None:
        """Forget all of them."""
        self._of_state.clear()


class RequestRates:
    """How busy the key groups are: requests a half-life, about."""

    def __init__(self, key_groups: range, now_ms: int) -> None:
        self.entered = dict.fromkeys(key_groups, 0)
        """How often each was entered since the last `decay`. The backend adds to it."""
        self._rates = dict.fromkeys(key_groups, 0.0)
        self._decayed_ms = now_ms

    def add_changes(self, versions: Iterable[Version]) -> None:
        """Count what a version changed of each state."""
        for version in versions:
            for key_group, changes in version.changes().items():
                self.entered[key_group] += changes

    def decay(self, now_ms: int) -> None:
        """Let time pass, and take in what was counted."""
        kept = 0.5 ** ((now_ms - self._decayed_ms) / HALF_LIFE_MS)
        self._decayed_ms = now_ms
        rates, entered = self._rates, self.entered
        for key_group, count in entered.items():
            rates[key_group] = rates[key_group] * kept + count
        # In place: the backend holds on to it.
        entered.update(dict.fromkeys(entered, 0))

    def of(self, key_group: int) -> float:
        """The decayed number of requests."""
        return self._rates[key_group]


def _cell_bytes(key: Any, value: Any) -> int:
    return deep_size(key, value) - ENTRY_BYTES + SLOT_BYTES


def _entries_bytes(key: Any, entries: Mapping[Any, Any]) -> int:
    weighed = [_cell_bytes(map_key, value) for map_key, value in islice(entries.items(), _MOST_ENTRIES)]
    each = sum(weighed) / len(weighed) if weighed else 0
    return _cell_bytes(key, None) + int(each * len(entries))
