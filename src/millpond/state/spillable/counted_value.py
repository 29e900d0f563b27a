"""A value state's handle whose work on many keys at once is counted, and takes looks, as `enter` does.

The heap's handle does such work past `enter`, which is where the backend looks up between records. So here it
goes run by run: key groups may move before a run, and never within one.
"""

# ruff: noqa: D102 - the protocols in backend.py and many.py say what the methods do
from collections.abc import Callable, Sequence
from typing import Any

from millpond.state.backend.batch_access import ManyKeys, ManyValues
from millpond.state.heap.states import HeapValueState


class CountedValue:
    """A value state on the heap, wherever its key groups are.

    Args:
        state: the heap's own handle; what is asked for one key goes straight to it.
        turned_to: called before each run of keys, with its key group and the number of keys.
    """

    __slots__ = ("_state", "_turned_to", "add", "clear", "descriptor", "exists", "get", "update", "update_with")

    def __init__(self, state: HeapValueState, turned_to: Callable[[int, int], None]) -> None:
        self._state = state
        self._turned_to = turned_to
        self.descriptor = state.descriptor
        self.exists = state.exists
        self.get = state.get
        self.update = state.update
        self.update_with = state.update_with
        self.add = state.add
        self.clear = state.clear

    def many(self) -> ManyValues | None:
        many = self._state.many()
        return None if many is None else _CountedMany(many, self._turned_to)


class _CountedMany:
    def __init__(self, values: ManyValues, turned_to: Callable[[int, int], None]) -> None:
        self._values = values
        self._turned_to = turned_to

    def get_many(self, many: ManyKeys) -> list[Any]:
        found: list[Any] = []
        for key_group, first, end in many.runs:
            found += self._values.get_many(self._run(many, key_group, first, end))
        return found

    def update_many(self, many: ManyKeys, values: Sequence[Any]) -> None:
        for key_group, first, end in many.runs:
            self._values.update_many(self._run(many, key_group, first, end), values[first:end])

    def add_many(self, many: ManyKeys, number: Any) -> None:
        for key_group, first, end in many.runs:
            some = number[first:end] if isinstance(number, Sequence) else number
            self._values.add_many(self._run(many, key_group, first, end), some)

    def clear_many(self, many: ManyKeys) -> None:
        for key_group, first, end in many.runs:
            self._values.clear_many(self._run(many, key_group, first, end))

    def _run(self, many: ManyKeys, key_group: int, first: int, end: int) -> ManyKeys:
        self._turned_to(key_group, end - first)
        return ManyKeys(many.keys[first:end], [(key_group, 0, end - first)], many.distinct)
