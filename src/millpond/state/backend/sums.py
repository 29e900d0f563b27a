"""Addition to numbers in value states: what `add` accepts and rejects, and how `update_with` implements it.

Invariant: `add(number)` keeps what `update(old + number)` would keep, provided that the state could keep the number
itself. So a bool is no count, and a sum beyond 64 bits is rejected as a value of that size is.
"""

import math
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from operator import add
from typing import Any

from millpond.errors import OptionError
from millpond.state.backend.current_key import Who
from millpond.state.backend.key_context import KeyContext
from millpond.state.types.descriptor import StateDescriptor

_DIGIT = (1 << 30) - 1
"""Sums up to this size are accepted by one comparison, the fastest for Python's integers. Larger ones go to `check`."""


class Sums:
    """Adds up the numbers of one state.

    Args:
        descriptor: of the state; None if unknown.
        check: checks a value of the state.

    Attributes:
        kind: int or float; None if the state's values are neither.
        low, high: a sum between the two needs no other check.
    """

    __slots__ = ("_check", "_descriptor", "high", "kind", "low")

    def __init__(self, descriptor: StateDescriptor | None, check: Callable[[Any], Any]) -> None:
        self._descriptor = descriptor
        self._check = check
        serializer = None if descriptor is None or descriptor.ttl is not None else descriptor.serializer
        self.kind = None if serializer is None else serializer.number
        self.high: float = math.inf if self.kind is float else _DIGIT
        self.low = -self.high

    @staticmethod
    def of_values(descriptor: StateDescriptor, context: KeyContext) -> "Sums":
        """Create the sums of a state's values as users know them, without what a TTL keeps beside them."""
        values = replace(descriptor, ttl=None)
        return Sums(values, values.codec(Who(f"state {descriptor.name!r}", context)).check)

    def number(self, number: Any) -> Any:
        """Return the number as the state would keep it.

        Raises:
            DataError: the state could not keep it.
            OptionError: values of the state are no numbers.
        """
        if type(number) is self.kind:
            return number
        if self.kind is None and self._descriptor is not None:
            raise OptionError(
                f"add() adds to numbers, and state {self._descriptor.name!r} is [{self._descriptor.describe()}]. "
                "Declare it as int or float, or use update_with()."
            )
        return self._check(number)

    def adding(self, number: Any) -> Callable[[Any], Any]:
        """Return a function that adds the number to an old value, or to None."""
        number = self.number(number)
        return lambda old: number if old is None else old + number

    def numbers(self, number: Any, count: int) -> list[Any]:
        """Return a sequence of numbers as the state would keep them, or one number `count` times."""
        if type(number) is self.kind or not isinstance(number, Sequence):
            return [self.number(number)] * count
        return list(number) if {*map(type, number)} == {self.kind} else list(map(self.number, number))

    def at_once(self, keys: Sequence[Hashable], olds: Sequence[Any], numbers: Sequence[Any]) -> list[Any] | None:
        """Return the sum of each old value and its number.

        None: a key occurs twice, an old value is None, or a sum needs a check.
        """
        if len(set(keys)) < len(keys):
            return None
        try:
            sums = list(map(add, olds, numbers))
            if self.kind is int:
                array("q", sums)
        except (TypeError, OverflowError):
            return None
        return sums

    def of_each(self, keys: Sequence[Hashable], olds: Sequence[Any], numbers: Sequence[Any]) -> dict[Any, Any]:
        """Return for each key the sum of its old value, or None, and all its numbers. A key may occur several times.

        >>> Sums(None, int).of_each(["ann", "bob", "ann"], [5, None, 5], [1, 2, 3])
        {'ann': 9, 'bob': 2}
        """
        sums = dict(zip(keys, olds, strict=True))
        for key, number in zip(keys, numbers, strict=True):
            old = sums[key]
            sums[key] = self._check(number if old is None else old + number)
        return sums


class PlainValue:
    """Implements `update_with` and `add` of a value state's handle by `get` and `update`. A subclass sets `_sums`."""

    __slots__ = ()

    _sums: Sums

    def get(self) -> Any:
        """Return the current key's value, or None."""
        raise NotImplementedError

    def update(self, value: Any) -> None:
        """Set the current key's value."""
        raise NotImplementedError

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        """Set the current key's value to what `change` returns for it, and return that."""
        value = change(self.get())
        self.update(value)
        return value

    def add(self, number: Any) -> Any:
        """Add to the current key's number. Return the sum."""
        return self.update_with(self._sums.adding(number))
