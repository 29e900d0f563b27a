"""The table of functions that a derivation may call.

Each family has one file (`maths`, `texts`, `times`, `containers`) that lists its functions. A function has a
signature and a sentence for the reference, and builds a `Typed` from its arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.features.derivations.casts import coerce
from millpond.features.derivations.typed import Failure, Faults, Typed, strict
from millpond.features.types import DataType

UNLIMITED = 255
"""The largest number of arguments of a function that takes any number."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the subset: its names, its numbers of arguments, and what builds a call of it."""

    names: tuple[str, ...]
    signature: str
    says: str
    build: Callable[[Sequence[Typed]], Typed]
    least: int
    most: int


def function(
    names: str,
    arguments: str,
    says: str,
    build: Callable[[Sequence[Typed]], Typed],
    least: int,
    most: int | None = None,
) -> Function:
    """Return a function that checks its arguments itself; several names are separated by spaces."""
    each = tuple(names.split())
    return Function(each, f"{each[0]}({arguments})", says, build, least, least if most is None else most)


def plain(
    names: str,
    parameters: Sequence[tuple[str, DataType]],
    result: DataType,
    python: str | Callable[..., Any],
    says: str,
    *,
    sql: str = "",
    failure: Failure | None = None,
    nullable: bool = False,
) -> Function:
    """Return a function with fixed parameters; it is null when one of its arguments is."""
    each = tuple(names.split())
    called = sql or f"{each[0]}({', '.join(f'{{{index}}}' for index in range(len(parameters)))})"

    def build(args: Sequence[Typed]) -> Typed:
        given = [argument(arg, type_, name) for arg, (name, type_) in zip(args, parameters, strict=True)]
        return strict(result, called, given, python, failure=failure, nullable=nullable)

    count = len(parameters)
    signature = f"{each[0]}({', '.join(name for name, _ in parameters)})"
    return Function(each, signature, says, build, count, count)


def argument(value: Typed, type_: DataType, name: str) -> Typed:
    """Return `value` converted to the type of the parameter `name`.

    Raises:
        Faults: it cannot be converted.
    """
    try:
        return coerce(value, type_)
    except Faults as faults:
        raise Faults([f"argument {name}: {fault}" for fault in faults.found]) from None


def written(value: Typed, type_: DataType, name: str) -> Any:
    """Return the value of an argument that must be a constant in the expression.

    Raises:
        Faults: it is not a constant of that type.
    """
    if not value.literal or value.value is None or value.type != type_:
        raise Faults([f"argument {name} must be written as a constant {type_}"])
    return value.value
