"""A handle of a value state whose batch access counts its keys as records, so that maintenance runs within a batch.

Batch access through the heap's handle does not call `enter`, which counts down to maintenance. So this handle passes on
a batch run by run, one key group after the other. Invariant: key groups may move before a run, but never within one.
"""

# ruff: noqa: D102 - the protocols in backend/ say what the methods do
from collections.abc import Callable, Sequence
from typing import Any

from millpond.state.backend.batch_access import ManyKeys, ManyValues
from millpond.state.heap.states import HeapValueState


class CountedValue:
    """A value state of a heap that spills, on the heap and on disk.

    Args:
        state: the heap's handle; access to single keys goes directly to it.
        before_run: called before each run of keys, with its key group and the number of keys.
    """

    __slots__ = ("_before_run", "_state", "add", "clear", "descriptor", "exists", "get", "update", "update_with")

    def __init__(self, state: HeapValueState, before_run: Callable[[int, int], None]) -> None:
        self._state = state
        self._before_run = before_run
        self.descriptor = state.descriptor
        self.exists = state.exists
        self.get = state.get
        self.update = state.update
        self.update_with = state.update_with
        self.add = state.add
        self.clear = state.clear

    def many(self) -> ManyValues | None:
        many = self._state.many()
        return None if many is None else _CountedMany(many, self._before_run)


class _CountedMany:
    def __init__(self, values: ManyValues, before_run: Callable[[int, int], None]) -> None:
        self._values = values
        self._before_run = before_run

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
        self._before_run(key_group, end - first)
        return ManyKeys(many.keys[first:end], [(key_group, 0, end - first)])
