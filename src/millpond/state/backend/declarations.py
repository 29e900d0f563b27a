"""The states that a backend holds, by name, and the errors for declarations that do not fit.

Each backend creates its own handles and keeps them here. A state has one handle, however often it is declared.
So all backends reject the same declarations with the same messages.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from millpond.errors import OptionError
from millpond.state.types.descriptor import StateDescriptor, StateKind


class Handle(Protocol):
    """A handle, as far as this module is concerned: it belongs to one state."""

    descriptor: StateDescriptor


S = TypeVar("S", bound=Handle)
T = TypeVar("T")


class Declarations(Generic[S]):
    """A backend's handles by state name.

    Args:
        kinds: the handle class of each kind of state.
        make: creates a handle of such a class for a state that is declared for the first time.
    """

    def __init__(self, kinds: Mapping[StateKind, type[S]], make: Callable[[type[Any], StateDescriptor], S]) -> None:
        self._kinds = kinds
        self._make = make
        self.states: dict[str, S] = {}

    def declare(self, descriptor: StateDescriptor, kind: type[T]) -> T:
        """Return the handle of a state, of the class asked for.

        Raises:
            OptionError: the state is of another kind, or another state has its name.
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
        """Return the handle of a state that is being restored, of any kind."""
        return self.declare(descriptor, self._kinds[descriptor.kind])

    def find(self, name: str) -> S:
        """Return the handle of a declared state.

        Raises:
            OptionError: no state of this name was declared.
        """
        known = self.states.get(name)
        if known is None:
            raise OptionError(f"state {name!r} is not declared; known are {sorted(self.states)}.")
        return known


def foreign_key_group(key_group: int, key_groups: range) -> OptionError:
    """Return the error for entering a key group that does not belong to this shard."""
    return OptionError(f"key group {key_group} is not one of this shard's: {key_groups}.")


def open_version(name: str) -> OptionError:
    """Return the error for loading a state while the open version has changes."""
    return OptionError(f"state {name!r} cannot be loaded while a version is open: roll back or commit first.")


def _mend(held: StateDescriptor) -> str:
    if held.serializer is not None and held.serializer.raw:
        return "It was restored before it was declared: declare it before the restore."
    return "Give the new state another name."
