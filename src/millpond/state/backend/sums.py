"""Adding to numbers in value states: what `add` takes, what it refuses, and how it is done by `update_with`.

Invariant: `add(number)` keeps what `update(old + number)` would keep, where the number itself is one that the state
could keep. So a bool is no count, and a sum beyond 64 bits is refused as a value of its size is.
"""

import math
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from operator import add
from typing import Any

from millpond.errors import OptionError
from millpond.state.backend.current_key import Who
from millpond.state.backend.protocols import KeyContext
from millpond.state.types.descriptor import StateDescriptor

_DIGIT = (1 << 30) - 1
"""Integers up to this are compared in the fewest steps; larger ones are checked as values are."""


class Sums:
    """How numbers of one state are added up.

    Args:
        descriptor: of the state; None where nothing is known of it.
        check: of the state's values.

    Attributes:
        kind: int or float; None where the state's values are neither.
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
        """Of the values that users know, whatever a ttl keeps beside them."""
        values = replace(descriptor, ttl=None)
        return Sums(values, values.codec(Who(f"state {descriptor.name!r}", context)).check)

    def number(self, number: Any) -> Any:
        """The number as the state would keep it.

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
        """What makes the sum of an old value, or of None."""
        number = self.number(number)
        return lambda old: number if old is None else old + number

    def numbers(self, number: Any, count: int) -> Sequence[Any]:
        """A sequence of numbers as the state would keep them, or one of them, `count` times."""
        if isinstance(number, Sequence):
            return number if {*map(type, number)} == {self.kind} else list(map(self.number, number))
        return [self.number(number)] * count

    def at_once(self, olds: Sequence[Any], numbers: Sequence[Any]) -> list[Any] | None:
        """The sum of each old value and its number; None where an old value is None, or a sum is to be checked."""
        try:
            sums = list(map(add, olds, numbers))
            if self.kind is int:
                array("q", sums)
        except (TypeError, OverflowError):
            return None
        return sums

    def of_each(self, keys: Sequence[Hashable], olds: Sequence[Any], numbers: Sequence[Any]) -> dict[Any, Any]:
        """Of each key the sum of its old value, or None, and its numbers: it may come several times.

        >>> Sums(None, int).of_each(["ann", "bob", "ann"], [5, None, 5], [1, 2, 3])
        {'ann': 9, 'bob': 2}
        """
        sums = dict(zip(keys, olds, strict=True))
        for key, number in zip(keys, numbers, strict=True):
            old = sums[key]
            sums[key] = self._check(number if old is None else old + number)
        return sums


class PlainValue:
    """`update_with` and `add` of a value state's handle that has `get` and `update`. Who inherits this sets `_sums`."""

    __slots__ = ()

    _sums: Sums

    def get(self) -> Any:
        """The current key's value, or None."""
        raise NotImplementedError

    def update(self, value: Any) -> None:
        """Set the current key's value."""
        raise NotImplementedError

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        """Set the current key's value to what `change` makes of it, and return that."""
        value = change(self.get())
        self.update(value)
        return value

    def add(self, number: Any) -> Any:
        """Add to the current key's number; the sum."""
        return self.update_with(self._sums.adding(number))
