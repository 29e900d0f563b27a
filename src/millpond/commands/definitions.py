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
from millpond.features.definitions import EntitySource, EventSource, JoinSource

_Definition = TypeVar("_Definition", GroupBy, Join)


class Definitions(NamedTuple):
    """GroupBys and Joins, each once, in the order in which they were found."""

    group_bys: tuple[GroupBy, ...]
    joins: tuple[Join, ...]

    @property
    def tables(self) -> set[str]:
        """The names of all tables and streams that their sources read."""
        found: set[str] = set()
        for group_by in self.group_bys:
            found |= _tables_of(group_by)
        for join in self.joins:
            found |= _tables_of_join(join)
        return found


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


def _tables_of(group_by: GroupBy) -> set[str]:
    found: set[str] = set() if group_by.sources else {group_by.name}
    for source in group_by.sources:
        found |= _tables_of_join(source.join) if isinstance(source, JoinSource) else _tables_of_source(source)
    return found


def _tables_of_join(join: Join) -> set[str]:
    found = set() if join.left is None else _tables_of_source(join.left)
    return found.union(*(_tables_of(part.group_by) for part in join.parts))


def _tables_of_source(source: EventSource | EntitySource) -> set[str]:
    names = (
        (source.table, source.stream)
        if isinstance(source, EventSource)
        else (source.snapshots, source.mutations, source.mutation_stream)
    )
    return {name for name in names if name is not None}


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
