"""Base classes for a backend that hands out no bytes, reports nothing and keeps no order of timers."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from millpond.metrics import Recorder
from millpond.state.backend.cell_bytes import cell_bytes
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.protocols import Cells
from millpond.state.backend.timer_queue import TimerQueue, TimersByTime, timers_in
from millpond.state.types.descriptor import StateDescriptor


class PlainSnapshot:
    """A snapshot that hands out cells and no bytes, and does not count its changes."""

    def changed_cells(self) -> Mapping[str, int] | None:
        """None: they are not counted."""
        return None

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:  # noqa: ARG002 - of every state and key group
        """None: there are no bytes to copy."""
        return None


class PlainBackend:
    """Raw copies, reports and order of timers of a backend that has none. The subclass implements all other members."""

    def cells(self, name: str, key_group: int) -> Cells:
        """Return every cell of a state in one key group as it is now."""
        raise NotImplementedError

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells as part of a restore."""
        raise NotImplementedError

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:  # noqa: ARG002 - of every state and key group
        """None: there are no bytes to copy."""
        return None

    def load_raw(self, descriptor: StateDescriptor, key_group: int, pairs: Iterable[Pair]) -> None:
        """Decode cells that another backend handed out as bytes, and load them."""
        self.load(descriptor, cell_bytes(descriptor, 0).cells(key_group, pairs))

    def timers_by_time(self, name: str, key_groups: range) -> TimersByTime:
        """Return a queue in memory, filled from the state's cells."""
        return TimerQueue(timers_in(self.cells, name, key_groups))

    def report_to(self, recorder: Recorder) -> None:
        """Report nothing."""

    def temperatures(self) -> pa.Table | None:
        """None: no key group moves."""
        return None
