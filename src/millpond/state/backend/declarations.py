"""The states that a backend holds, by name, and what it says to a declaration that does not fit.

Every backend makes its own handles, and keeps them here: one for each name, the same one however often
a state is declared. So they all refuse the same things in the same words.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from millpond.errors import OptionError
from millpond.state.types.descriptor import StateDescriptor, StateKind


class Handle(Protocol):
    """What a handle is here: something of one state."""

    descriptor: StateDescriptor


S = TypeVar("S", bound=Handle)
T = TypeVar("T")


class Declarations(Generic[S]):
    """A backend's handles by the names of their states.

    Args:
        kinds: the class of the handles of each kind of state.
        make: a handle of one of these classes, for a state that is declared the first time.
    """

    def __init__(self, kinds: Mapping[StateKind, type[S]], make: Callable[[type[Any], StateDescriptor], S]) -> None:
        self._kinds = kinds
        self._make = make
        self.states: dict[str, S] = {}

    def declare(self, descriptor: StateDescriptor, kind: type[T]) -> T:
        """The handle of a state, of the class asked for.

        Raises:
            OptionError: the state is of another kind, or its name is another state's.
        """
        if self._kinds[descriptor.kind] is not kind:
            raise OptionError(
                f"state {descriptor.name!r} is a {descriptor.kind} state: [{descriptor.describe()}]. Ask for it as "
                "what it was declared as."
            )
        known = self.states.get(descriptor.name)
        if known is None:
            known = self.states[descriptor.name] = self._make(kind, descriptor)
        if known.descriptor != descriptor or not isinstance(known, kind):
            raise OptionError(
                f"state {descriptor.name!r} is held as [{known.descriptor.describe()}] and was declared again as "
                f"[{descriptor.describe()}]. {_mend(known.descriptor)}"
            )
        return known

    def restore(self, descriptor: StateDescriptor) -> S:
        """The handle of a state that is being restored, of whichever kind."""
        return self.declare(descriptor, self._kinds[descriptor.kind])

    def find(self, name: str) -> S:
        """The handle of a state that was declared.

        Raises:
            OptionError: it was not.
        """
        known = self.states.get(name)
        if known is None:
            raise OptionError(f"state {name!r} is not declared; known are {sorted(self.states)}.")
        return known


def foreign_key_group(key_group: int, key_groups: range) -> OptionError:
    """The error of a backend that is turned to a key group which is not its shard's."""
    return OptionError(f"key group {key_group} is not one of this shard's: {key_groups}.")


def open_version(name: str) -> OptionError:
    """The error of a backend that shall load a state into a version that has changes."""
    return OptionError(f"state {name!r} cannot be loaded while a version is open: roll back or commit first.")


def _mend(held: StateDescriptor) -> str:
    if held.serializer is not None and held.serializer.raw:
        return "It was restored before it was declared: declare it before the restore."
    return "Give the new state another name."
