"""The backend's code that runs for each record: it enters a key group, and counts down to the next maintenance run.

Like the hot path of values (`millpond.state.heap.states`), these are functions over local variables, which are faster
than attributes.
"""

from collections.abc import Callable, Sequence

from millpond.state.backend.declarations import foreign_key_group
from millpond.state.backend.key_context import KeyContext
from millpond.state.heap.states import BoundState


class MaintenanceCountdown:
    """The countdown of one backend.

    Args:
        entered: the requests of each key group; entering adds to them.
        maintain: runs maintenance, and returns the number of records until the next run.

    Attributes:
        enter: bind every handle to the tables of one key group, on the heap or on disk. Counts as one record.
        written: announce that a number of cells is about to be written. Counts as that number of records.
        maintain_soon: make the next record run maintenance.
    """

    def __init__(
        self,
        key_groups: range,
        context: KeyContext,
        bound: Sequence[BoundState],
        entered: dict[int, int],
        maintain: Callable[[], int],
    ) -> None:
        records_left = 0

        def enter(key_group: int) -> None:
            nonlocal records_left
            records_left -= 1
            if records_left < 0:
                records_left = maintain()
            # The code of the heap's `enter`, inlined: it runs for each record that changes the key group.
            try:
                entered[key_group] += 1
            except KeyError:
                raise foreign_key_group(key_group, key_groups) from None
            context.key_group = key_group
            if bound:
                for state in bound:
                    state.bind(key_group)

        def written(cells: int) -> None:
            nonlocal records_left
            records_left -= cells
            if records_left < 0:
                records_left = maintain()

        def maintain_soon() -> None:
            nonlocal records_left
            records_left = 0

        self.enter: Callable[[int], None] = enter
        self.written: Callable[[int], None] = written
        self.maintain_soon: Callable[[], None] = maintain_soon
