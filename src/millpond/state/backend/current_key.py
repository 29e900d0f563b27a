"""Names the current key in errors, and rejects the use of a state while no key is current.

Every backend's handles use this. A handle that is used in `init()` or `close()`, or after a version ended, must raise
an error that names the state; it must not write anywhere. And an error about a value names the key. Both texts
are built only when an error is read, so records do not pay for them.
"""

from typing import Any

from millpond.errors import OptionError
from millpond.state.backend.key_context import KeyContext


class Who:
    """Text that names a state, and the current key if there is one.

    >>> context = KeyContext()
    >>> str(Who("state 'visits'", context))
    "state 'visits'"
    >>> context.key_group, context.key = 7, ("ann",)
    >>> str(Who("state 'visits'", context))
    "state 'visits' of key ('ann',)"
    """

    def __init__(self, what: str, context: KeyContext) -> None:
        self._what = what
        self._context = context

    def __str__(self) -> str:
        return self._what if self._context.key_group < 0 else f"{self._what} of key {self._context.key!r}"


class NoKeyGroup:
    """Replaces a handle's dictionaries while no key group is entered. Every access raises an OptionError."""

    def __init__(self, name: str) -> None:
        self._what = f"state {name!r}"

    def _refuse(self, *_: object) -> Any:
        raise no_current_key(self._what)

    get = pop = setdefault = __contains__ = __getitem__ = __setitem__ = _refuse


def no_current_key(what: str) -> OptionError:
    """Return the error for a state ("state 'visits'") that is used while no key is current."""
    return OptionError(
        f"{what} was used without a current key. Use it only inside the calls that are made for a key, not in "
        "init() or close()."
    )
