"""Collects the faults of a definition, to report them all at once.

A definition's check goes through every part and adds what is wrong. Then one error names all of it,
so a user can correct a definition in one go.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from millpond.errors import OptionError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_T = TypeVar("_T")


class Faults:
    """The faults of one definition.

    >>> faults = Faults("GroupBy 'route'")
    >>> faults.add("it has no keys; declare at least one")
    >>> faults.report()
    Traceback (most recent call last):
    millpond.errors.OptionError: GroupBy 'route': it has no keys; declare at least one
    """

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._faults: list[str] = []

    def add(self, fault: str) -> None:
        """Add one fault: what is wrong and how to correct it."""
        self._faults.append(fault)

    def report(self) -> None:
        """Raise an `OptionError` that names every fault, if there is one."""
        if len(self._faults) == 1:
            raise OptionError(f"{self._whose}: {self._faults[0]}")
        if self._faults:
            listed = "".join(f"\n  - {fault}" for fault in self._faults)
            raise OptionError(f"{self._whose} has {len(self._faults)} faults:{listed}")

    def parts(self, what: str, given: Any, kind: type[_T] | tuple[type[_T], ...]) -> tuple[_T, ...]:
        """Return as a tuple the parts that are of a kind; any other part is a fault."""
        wanted = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            self.add(f"{what} must be a tuple of {wanted}, got {given!r}")
            return ()
        items = tuple(given)
        for item in items:
            if not isinstance(item, kind):
                self.add(f"{what} must hold only {wanted}, got {item!r}")
        return tuple(item for item in items if isinstance(item, kind))

    def name(self, name: object) -> None:
        """Add a fault if a name cannot name a dataset."""
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            self.add(
                f"the name {name!r} must begin with a letter and go on with letters, digits, _ or -; "
                f"did you mean {_nearest_name(name)!r}?"
            )

    def doubles(self, what: str, names: Iterable[str], mend: str = "drop or rename one") -> None:
        """Add a fault for each name that appears twice, with how to mend it."""
        seen: set[str] = set()
        doubles: dict[str, None] = {}
        for name in names:
            if name in seen:
                doubles[name] = None
            seen.add(name)
        for name in doubles:
            self.add(f"{what} {name!r} is declared twice; {mend}")


def frozen_texts(faults: Faults, what: str, given: Any) -> tuple[tuple[str, str], ...]:
    """Return a mapping of texts as sorted pairs, which can be hashed; anything but a text is a fault."""
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        frozen = tuple(sorted((key, value) for key, value in pairs))
    except (TypeError, ValueError):
        faults.add(f"{what} must be a mapping of texts, got {given!r}")
        return ()
    for key, value in frozen:
        if not isinstance(key, str) or not isinstance(value, str):
            faults.add(f"{what} must be a mapping of texts, got {key!r}: {value!r}")
    return frozen


def listed(values: Iterable[str]) -> str:
    """Return values as a list in a sentence.

    >>> listed(["long", "int"])
    "'long', 'int'"
    """
    return ", ".join(repr(value) for value in values)


def _nearest_name(name: object) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9_-]+", "_", str(name)).strip("_-")
    return cleaned if _NAME.fullmatch(cleaned) else f"group_{cleaned}".rstrip("_")
