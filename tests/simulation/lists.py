"""List-append histories, in the manner of Jepsen: what was done, what was seen, and what is wrong with that.

Each element that is appended has an id of its own, and says which attempt of which batch appended it. So whatever is
seen can be told apart by what it can only have come from.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LOST = "lost update"
DOUBLE = "double count"
ABORTED = "aborted read"
STALE = "stale base segment"


class Element(NamedTuple):
    """What is appended to a list: its id, and the attempt that appended it."""

    id: int
    attempt: int


class Operation(NamedTuple):
    """What a row does to its key's list: append an id, or clear the list where there is none."""

    key: str
    id: int | None


Lists = dict[str, list[Element]]


@dataclass
class History:
    """Which batches were accepted, by which attempt, and what they gave out.

    `past` has every element that was ever in a list, also if it was cleared later.
    """

    lists: Lists = field(default_factory=dict)
    past: set[Element] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)
    batches: int = 0

    def accept(self, operations: Sequence[Operation], attempt: int, seen: Sequence[list[Element]]) -> None:
        """A batch is accepted; after each of its operations its attempt saw the key's list like this."""
        for operation, found in zip(operations, seen, strict=True):
            expected = self.lists.setdefault(operation.key, [])
            if operation.id is None:
                expected.clear()
            else:
                expected.append(Element(operation.id, attempt))
                self.past.add(expected[-1])
            self._compare(expected, found)
        self.batches += 1

    def check(self, found: Lists) -> None:
        """What was read of all keys, after the accepted batches."""
        for key in self.lists.keys() | found.keys():
            self._compare(self.lists.get(key, []), found.get(key, []))

    def _compare(self, expected: Sequence[Element], found: Sequence[Element]) -> None:
        if list(expected) == list(found):
            return
        kinds = set(_kinds(expected, found, self.past))
        assert kinds, f"expected {expected}, found {found}"
        self.faults.update(kinds)


def _kinds(expected: Sequence[Element], found: Sequence[Element], past: set[Element]) -> list[str]:
    """What is wrong with a list."""
    kinds = []
    if set(expected) - set(found) or [each for each in found if each in set(expected)] != list(expected):
        kinds.append(LOST)
    if len({each.id for each in found}) < len(found):
        kinds.append(DOUBLE)
    return kinds + [STALE if each in past else ABORTED for each in set(found) - set(expected)]
