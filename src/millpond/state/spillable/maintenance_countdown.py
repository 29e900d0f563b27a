"""What each record calls of the backend: it turns to a key group, and counts down to the next look.

As the hot path of values (`millpond.state.heap.states`) these are functions over variables of their own.
"""

from collections.abc import Callable, Sequence

from millpond.state.backend.declarations import foreign_key_group
from millpond.state.backend.protocols import KeyContext
from millpond.state.heap.states import BoundState


class Passes:
    """One backend's.

    Args:
        key_groups: of the shard.
        context: of the heap.
        bound: handles that are bound to a key group's tables.
        entered: by key group, where requests are counted.
        look: looks, and says after how many turns to look again.

    Attributes:
        enter: turn every handle to the tables of one key group, wherever they are: a turn.
        written: so many cells are about to be written: as many turns.
        look_soon: have the next turn look.
    """

    def __init__(
        self,
        key_groups: range,
        context: KeyContext,
        bound: Sequence[BoundState],
        entered: dict[int, int],
        look: Callable[[], int],
    ) -> None:
        turns_left = 0

        def enter(key_group: int) -> None:
            nonlocal turns_left
            turns_left -= 1
            if turns_left < 0:
                turns_left = look()
            # What the heap does, written out: it is done for each record that is not of the last one's key group.
            try:
                entered[key_group] += 1
            except KeyError:
                raise foreign_key_group(key_group, key_groups) from None
            context.key_group = key_group
            if bound:
                for state in bound:
                    state.bind(key_group)

        def written(cells: int) -> None:
            nonlocal turns_left
            turns_left -= cells
            if turns_left < 0:
                turns_left = look()

        def look_soon() -> None:
            nonlocal turns_left
            turns_left = 0

        self.enter: Callable[[int], None] = enter
        self.written: Callable[[int], None] = written
        self.look_soon: Callable[[], None] = look_soon
