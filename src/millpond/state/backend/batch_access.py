"""Batch access: read and write a value state of many keys at once, for callers that hold a batch of keys.

Through a handle, a thousand keys cost a thousand calls. A handle that can do better has a method `many`. For
every other handle the functions here go key by key, over any backend, cache or time to live, with the same
result.

Invariant: these functions leave the backend as one call per key would, except that the current key is
undefined afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

from millpond.state.backend.protocols import KeyedStateBackend, ValueState
from millpond.state.types.key_types import given_forms
from millpond.state.types.rows import Row


class ManyKeys:
    """Keys of one shard, in runs: consecutive keys of one key group.

    Attributes:
        keys: the keys.
        runs: `(key group, first, end)` of each run, in the order of the keys.
    """

    # A dataclass with a cached property costs microseconds a batch, as much as fifty keys.
    __slots__ = ("_given", "keys", "runs")

    def __init__(self, keys: Sequence[Row], runs: Sequence[tuple[int, int, int]]) -> None:
        self.keys = keys
        self.runs = runs
        self._given: list[Any] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def given(self) -> list[Any]:
        """The keys in their given form."""
        if self._given is None:
            self._given = given_forms(self.keys)
        return self._given

    @staticmethod
    def of(keys: Sequence[Row], key_groups: Sequence[int]) -> "ManyKeys":
        """Return keys with their key groups, divided into runs.

        >>> ManyKeys.of([("a",), ("b",), ("c",)], [7, 7, 9]).runs
        [(7, 0, 2), (9, 2, 3)]
        """
        starts = [at for at, group in enumerate(key_groups) if at == 0 or group != key_groups[at - 1]]
        bounds = pairwise([*starts, len(keys)])
        return ManyKeys(keys, [(key_groups[first], first, end) for first, end in bounds])


class ManyValues(Protocol):
    """Batch access to one value state."""

    def get_many(self, many: ManyKeys) -> list[Any]:
        """Return the value of each key, or None."""

    def update_many(self, many: ManyKeys, values: Sequence[Any]) -> None:
        """Set the value of each key. If a key occurs twice, its last value counts. The values are checked already."""

    def add_many(self, many: ManyKeys, number: Any) -> None:
        """Add `number` to the value of each key, or of a sequence each number to its own. A key may occur twice."""

    def clear_many(self, many: ManyKeys) -> None:
        """Delete the value of each key."""


def _many(state: ValueState) -> ManyValues | None:
    many: Callable[[], ManyValues | None] | None = getattr(state, "many", None)
    return None if many is None else many()


def each_key(backend: KeyedStateBackend, many: ManyKeys) -> Iterator[int]:
    """Make each key the current key in turn, and yield its position."""
    context = backend.context
    for key_group, first, end in many.runs:
        backend.enter(key_group)
        for at in range(first, end):
            context.key = many.keys[at]
            yield at


def get_many(backend: KeyedStateBackend, state: ValueState, many: ManyKeys) -> list[Any]:
    """Return the value of each key, or None."""
    at_once = _many(state)
    if at_once is not None:
        return at_once.get_many(many)
    return [state.get() for _ in each_key(backend, many)]


def update_many(backend: KeyedStateBackend, state: ValueState, many: ManyKeys, values: Sequence[Any]) -> None:
    """Set the value of each key. If a key occurs twice, its last value counts."""
    at_once = _many(state)
    if at_once is not None:
        at_once.update_many(many, values)
        return
    for at in each_key(backend, many):
        state.update(values[at])


def add_many(backend: KeyedStateBackend, state: ValueState, many: ManyKeys, number: Any) -> None:
    """Add `number` to the value of each key, or of a sequence each number to its own. A key may occur twice.

    Raises:
        DataError: a number, or a sum, does not fit. The keys before it may have been changed already.
        OptionError: values of the state are neither int nor float.
    """
    at_once = _many(state)
    if at_once is not None:
        at_once.add_many(many, number)
        return
    for at in each_key(backend, many):
        state.add(number[at] if isinstance(number, Sequence) else number)


def clear_many(backend: KeyedStateBackend, state: ValueState, many: ManyKeys) -> None:
    """Delete the value of each key."""
    at_once = _many(state)
    if at_once is not None:
        at_once.clear_many(many)
        return
    for _ in each_key(backend, many):
        state.clear()
