"""IRs of which some cells are not known.

A GroupBy may get further cells while its stream goes on. Tiles written earlier lack these cells. That
does not mean "no events" but "not known". Whatever is merged with an unknown cell is unknown. A feature that
needs it is unavailable until its windows have passed that time, or until an upload covers it.
"""

from typing import Final

from millpond.features.cells.cell import Ir


class Unknown:
    """The type of `UNKNOWN`, its only instance."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __reduce__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown()
"""Stands for a cell that a stored tile does not have."""


class PartialIr(tuple):  # type: ignore[type-arg]  # its cells are of any type
    """An IR with an `UNKNOWN` in it; every other IR is a plain tuple, so that a merge need not look at cells.

    >>> PartialIr((3, UNKNOWN))
    PartialIr((3, UNKNOWN))
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"PartialIr({super().__repr__()})"


def is_known(ir: Ir, positions: tuple[int, ...]) -> bool:
    """Return whether the cells at some positions are known.

    >>> is_known((3, 4), (0, 1)), is_known(PartialIr((3, UNKNOWN)), (0, 1))
    (True, False)
    """
    return type(ir) is tuple or not any(ir[position] is UNKNOWN for position in positions)
