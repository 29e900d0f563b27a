"""How the faults of a definition are collected and told, all at once.

A definition's check goes through every part and adds what is wrong; then one error names all of it,
so that a user mends a definition in one go.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from millpond.errors import OptionError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_T = TypeVar("_T")


class Faults:
    """What is wrong with one definition.

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
        """Note one fault: what is wrong and how to mend it."""
        self._faults.append(fault)

    def report(self) -> None:
        """Raise an `OptionError` that names every fault, if there is one."""
        if len(self._faults) == 1:
            raise OptionError(f"{self._whose}: {self._faults[0]}")
        if self._faults:
            listed = "".join(f"\n  - {fault}" for fault in self._faults)
            raise OptionError(f"{self._whose} has {len(self._faults)} faults:{listed}")

    def parts(self, what: str, given: Any, kind: type[_T] | tuple[type[_T], ...]) -> tuple[_T, ...]:
        """Give the parts of one kind as a tuple, without those of another kind, which are faults."""
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
        """Note a name that cannot name a dataset."""
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            self.add(
                f"the name {name!r} must begin with a letter and go on with letters, digits, _ or -; "
                f"did you mean {_nearest_name(name)!r}?"
            )

    def doubles(self, what: str, names: Iterable[str]) -> None:
        """Note the names that stand twice."""
        seen: set[str] = set()
        doubles: dict[str, None] = {}
        for name in names:
            if name in seen:
                doubles[name] = None
            seen.add(name)
        for name in doubles:
            self.add(f"{what} {name!r} is declared twice; drop or rename one")


def frozen_texts(faults: Faults, what: str, given: Any) -> tuple[tuple[str, str], ...]:
    """Give a mapping of texts as sorted pairs, which can be hashed; what is no text is a fault."""
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
    """Give values as a sentence lists them.

    >>> listed(["long", "int"])
    "'long', 'int'"
    """
    return ", ".join(repr(value) for value in values)


def _nearest_name(name: object) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9_-]+", "_", str(name)).strip("_-")
    return cleaned if _NAME.fullmatch(cleaned) else f"group_{cleaned}".rstrip("_")
