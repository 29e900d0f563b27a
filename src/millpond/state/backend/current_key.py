"""What the handles of every backend say of the current key: whose state it is, and that there is none.

A handle that is used in `init()` or `close()`, or after a version ended, must fail by name and not write
somewhere. And what goes wrong with a value is told with the key it is for. Both texts are made only when
they are read, since records never read them.
"""

from typing import Any

from millpond.errors import OptionError
from millpond.state.backend.protocols import KeyContext


class Who:
    """Names a state, and the current key where there is one.

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
    """Stands where a handle's dictionaries would while no key group is entered, and refuses every use of a state."""

    def __init__(self, name: str) -> None:
        self._what = f"state {name!r}"

    def _refuse(self, *_: object) -> Any:
        raise no_current_key(self._what)

    get = pop = setdefault = __contains__ = __getitem__ = __setitem__ = _refuse


def no_current_key(what: str) -> OptionError:
    """The error of a state ("state 'visits'") that is used while no key is current."""
    return OptionError(
        f"{what} was used without a current key. Use it only inside the calls that are made for a key, not in "
        "init() or close()."
    )
