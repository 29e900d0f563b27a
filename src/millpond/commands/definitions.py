"""Reads the definitions for a command: the GroupBys and Joins of a Python file or module.

A file is given by its path (`features/flights.py`), a module by its import name (`shop.features`). All GroupBys and
Joins among its global names count. A GroupBy that is only used in a Join need not have a global name.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar

from millpond.errors import OptionError
from millpond.features import GroupBy, Join

_Definition = TypeVar("_Definition", GroupBy, Join)


class Definitions(NamedTuple):
    """GroupBys and Joins, each once, in the order in which they were found."""

    group_bys: tuple[GroupBy, ...]
    joins: tuple[Join, ...]


def load_definitions(places: Sequence[str]) -> Definitions:
    """Read the definitions of some files and modules.

    Raises:
        OptionError: a place cannot be imported or has no definition, or two different definitions have the same name.
    """
    group_bys: dict[str, GroupBy] = {}
    joins: dict[str, Join] = {}
    for place in places:
        found = [value for value in vars(_imported(place)).values() if isinstance(value, GroupBy | Join)]
        if not found:
            raise OptionError(f"{place} has no GroupBy and no Join among its names.")
        for definition in found:
            if isinstance(definition, Join):
                _add(joins, definition, place)
                for part in definition.parts:
                    _add(group_bys, part.group_by, place)
            else:
                _add(group_bys, definition, place)
    return Definitions(tuple(group_bys.values()), tuple(joins.values()))


def _imported(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place).resolve()
        loader = SourceFileLoader(path.stem, str(path))
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        sys.modules.setdefault(path.stem, module)
        loader.exec_module(module)
    except (ImportError, OSError, SyntaxError) as error:
        raise OptionError(f"{place} cannot be imported: {error}. Give a Python file or a module.") from error
    return module


def _add(named: dict[str, _Definition], definition: _Definition, place: str) -> None:
    before = named.setdefault(definition.name, definition)
    if before != definition:
        raise OptionError(f"{place}: {type(definition).__name__} {definition.name!r} is defined twice, differently.")
