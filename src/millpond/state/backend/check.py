"""Refuses a backend that lacks a part of the interface, before a record is lost to it."""

from typing import TypeVar

from millpond.errors import OptionError
from millpond.state.backend.protocols import KeyedStateBackend, RawCopies, Reports, StateAccess, Versions

B = TypeVar("B", bound=KeyedStateBackend)

_PARTS = {"state access": StateAccess, "versions": Versions, "raw copies": RawCopies, "reports": Reports}


def missing_members(backend: object) -> list[str]:
    """What a backend, or a class of backends, lacks, with the part of the interface that it belongs to.

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
    """The backend itself.

    Raises:
        OptionError: it lacks members of `KeyedStateBackend`; they are named.
    """
    missing = missing_members(backend)
    if missing:
        raise OptionError(
            f"{type(backend).__name__} is no KeyedStateBackend: it has no {', '.join(missing)}. Inherit from "
            "millpond.state.PlainBackend if it copies no bytes and reports nothing, or from "
            "millpond.state.ForwardingBackend if it wraps another backend."
        )
    return backend
