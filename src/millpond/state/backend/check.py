"""Check that a backend has every member of the interface, before it handles any record."""

from typing import TypeVar

from millpond.errors import OptionError
from millpond.state.backend.protocols import KeyedStateBackend, RawCopies, Reports, StateAccess, Versions

B = TypeVar("B", bound=KeyedStateBackend)

_PARTS = {"state access": StateAccess, "versions": Versions, "raw copies": RawCopies, "reports": Reports}


def missing_members(backend: object) -> list[str]:
    """Return the members that a backend, or a class of backends, lacks, each with its part of the interface.

    >>> missing_members(object())[-2:]
    ['report_to (reports)', 'temperatures (reports)']
    """
    return [
        f"{name} ({part})"
        for part, protocol in _PARTS.items()
        for name in vars(protocol)
        if not name.startswith("_") and not hasattr(backend, name)
    ]


def checked_backend(backend: B) -> B:
    """Return the backend itself.

    Raises:
        OptionError: it lacks members of `KeyedStateBackend`. The message names them.
    """
    missing = missing_members(backend)
    if missing:
        raise OptionError(
            f"{type(backend).__name__} is no KeyedStateBackend: it has no {', '.join(missing)}. Inherit from "
            "millpond.state.PlainBackend if it copies no bytes and reports nothing, or from "
            "millpond.state.ForwardingBackend if it wraps another backend."
        )
    return backend
