"""The kinds of values and the shapes of states that the tests run over.

A `Kind` makes values by number, so that the value a test expects is never the object that it gave away.
"""

import copy
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from millpond.state.backend.protocols import Appended
from millpond.state.spi import ABSENT, Cells, KeyedStateBackend, StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import Serializer, msgspec_serializer
from millpond.state.types.ttl import Ttl

GROUPS = range(3, 6)
"""The key groups of the shard under test: neither the first nor the last of an operator's."""

ANN, BOB, EVE = ("ann",), ("bob",), ("eve",)
PLACE_NAMES = pa.schema([("page", pa.string()), ("step", pa.int64())])
HOME, CART = ("home", 1), ("cart", None)


@dataclass
class Visit:
    pages: list[str] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True)
class Kind:
    """One kind of values.

    Attributes:
        name: in test ids.
        make: the value of a number, new at every call; different numbers, different values.
        unfit: a value that the state must refuse.
        grow: changes a value in place; None where values are immutable.
        schema: of the values.
        serializer: of objects.
        ttl: of the state.
    """

    name: str
    make: Callable[[int], Any]
    unfit: Any
    grow: Callable[[Any], object] | None = None
    schema: pa.Schema = OBJECT_SCHEMA
    serializer: Serializer | None = None
    ttl: Ttl | None = None

    def grown(self, number: int) -> Any:
        """The value of a number after `grow`."""
        value = self.make(number)
        assert self.grow is not None
        self.grow(value)
        return value

    def __repr__(self) -> str:
        return self.name


def with_ttl(kind: Kind) -> Kind:
    """The same values in a state with a TTL: pairs of a value and the time since when it lives."""
    grow = kind.grow
    return Kind(
        f"{kind.name}-ttl",
        lambda number: (kind.make(number), 1_000 + number),
        (kind.unfit, 1_000),
        None if grow is None else lambda value: grow(value[0]),
        kind.schema,
        kind.serializer,
        Ttl(60_000),
    )


_FLAT = pa.schema([("count", pa.int64()), ("name", pa.string())])
_NESTED = pa.schema([("numbers", pa.list_(pa.int64())), ("name", pa.string())])

FLAT_ROW = Kind(
    "flat-row", lambda number: (number or None, None if number == 1 else f"n{number}"), ("many", "n"), schema=_FLAT
)
NESTED_ROW = Kind(
    "nested-row",
    lambda number: ([number, None], f"n{number}"),
    (["many"], "n"),
    lambda value: value[0].append(99),
    _NESTED,
)
INTEGER = Kind("int", lambda number: number, "many", serializer=msgspec_serializer(int))
FLOAT = Kind("float", lambda number: number / 2, "many", serializer=msgspec_serializer(float))
LIST = Kind(
    "list",
    lambda number: [number] * (number % 3),
    ["many"],
    lambda value: value.append(99),
    serializer=msgspec_serializer(list[int]),
)
DICT = Kind(
    "dict",
    lambda number: {f"k{number}": [number, 7]},
    {"k": ["many"]},
    lambda value: next(iter(value.values())).append(99),
    serializer=msgspec_serializer(dict[str, list[int]]),
)
DATACLASS = Kind(
    "dataclass",
    lambda number: Visit(["home"], number),
    7,
    lambda value: value.pages.append("grown"),
    serializer=msgspec_serializer(Visit),
)
# A list makes an empty value of some numbers, which is a value all the same; so does the number 0.
KINDS = [FLAT_ROW, NESTED_ROW, INTEGER, LIST, DICT, DATACLASS, with_ttl(FLAT_ROW), with_ttl(DICT)]
FEW_KINDS = [FLAT_ROW, NESTED_ROW, with_ttl(DICT)]
MUTABLE_KINDS = [kind for kind in KINDS if kind.grow is not None]


class Cell:
    """One state of any shape, of which a test uses one cell per key: all of a value or a list, one entry of a map.

    What holds for a cell of every shape is tested once, with this.
    """

    def __init__(self, backend: KeyedStateBackend, shape: StateKind, kind: Kind, name: str = "visits") -> None:
        self.backend, self.shape, self.name = backend, shape, name
        self.descriptor = describe(name, shape, kind)
        self.handle: Any = declare(backend, self.descriptor)

    def put(self, value: Any) -> None:
        """Make the cell of the current key hold this value."""
        if self.shape is StateKind.VALUE:
            self.handle.update(value)
        elif self.shape is StateKind.LIST:
            self.handle.put([value])
        else:
            self.handle.put(HOME, value)

    def get(self) -> Any:
        """What `put` put, or None."""
        if self.shape is StateKind.VALUE:
            return self.handle.get()
        if self.shape is StateKind.LIST:
            return next(iter(self.handle.get()), None)
        return self.handle.get(HOME)

    def clear(self) -> None:
        self.handle.clear()

    def exists(self) -> bool:
        return bool(self.handle.exists())

    def holds(self, value: Any) -> Any:
        """What cells of this shape hold for a value: itself, a list of it, or ABSENT."""
        return [value] if self.shape is StateKind.LIST and value is not ABSENT else value

    def place(self, group: int, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """Where `placed` finds the cell of a key."""
        return (group, key, HOME) if self.shape is StateKind.MAP else (group, key)

    def placed(self, values: dict[tuple[int, tuple[Any, ...]], Any]) -> dict[tuple[Any, ...], Any]:
        """What `placed` of the module gives for these values by key group and key."""
        return {self.place(group, key): self.holds(value) for (group, key), value in values.items()}

    def cells(self, values: dict[tuple[int, tuple[Any, ...]], Any]) -> Cells:
        """These values, or ABSENT, by key group and key, as cells."""
        return Cells(
            [group for group, _ in values],
            [key for _, key in values],
            [HOME] * len(values) if self.shape is StateKind.MAP else None,
            [self.holds(value) for value in values.values()],
        )


def describe(name: str, shape: StateKind, kind: Kind) -> StateDescriptor:
    """The declaration of a state."""
    map_key_schema = PLACE_NAMES if shape is StateKind.MAP else None
    return StateDescriptor(name, shape, kind.schema, map_key_schema, kind.serializer, kind.ttl)


def declare(backend: KeyedStateBackend, descriptor: StateDescriptor) -> Any:
    """The handle of a state."""
    ways = {
        StateKind.VALUE: backend.value_state,
        StateKind.LIST: backend.list_state,
        StateKind.MAP: backend.map_state,
    }
    return ways[descriptor.kind](descriptor)


def set_current_key(backend: KeyedStateBackend, group: int, key: tuple[Any, ...]) -> None:
    """Make a key the current one."""
    backend.enter(group)
    backend.context.key = key


def placed(cells: Cells) -> dict[tuple[Any, ...], Any]:
    """Cells by key group, key and map key, copied: two cells of the same place would be a mistake of their own."""
    assert len(cells.key_groups) == len(cells.keys) == len(cells.values)
    if cells.map_keys is None:
        places: list[tuple[Any, ...]] = list(zip(cells.key_groups, cells.keys, strict=True))
    else:
        places = list(zip(cells.key_groups, cells.keys, cells.map_keys, strict=True))
    assert len(set(places)) == len(places), f"a cell came twice: {places}"
    return dict(zip(places, map(copied, cells.values), strict=True))


def changed(
    changes: Iterator[tuple[str, Cells]], before: Mapping[str, Mapping[tuple[Any, ...], Any]] = MappingProxyType({})
) -> dict[str, dict[tuple[Any, ...], Any]]:
    """All pieces of a snapshot's changes by state; a cell that came in two pieces would be a mistake of its own.

    What was added to a list is given with what it was added to: with the list of `before`, if there was any.
    """
    states: dict[str, dict[tuple[Any, ...], Any]] = {}
    for name, cells in changes:
        state, piece = states.setdefault(name, {}), placed(cells)
        assert not state.keys() & piece.keys()
        state |= {
            place: grown(value, before.get(name, {}).get(place, [])) if type(given) is Appended else value
            for (place, value), given in zip(piece.items(), cells.values, strict=True)
        }
    return {name: state for name, state in states.items() if state}


def grown(added: Any, before: Any) -> Any:
    """A list after elements were added to it. A list that was not there has none."""
    return [*(() if before is ABSENT else before), *added]


def everything(source: Any, name: str) -> dict[tuple[Any, ...], Any]:
    """Every cell of a state, of a backend now or of a snapshot."""
    cells: dict[tuple[Any, ...], Any] = {}
    for group in GROUPS:
        in_group = placed(source.cells(name, group))
        assert {place[0] for place in in_group} <= {group}
        cells |= in_group
    return cells


def exact(values: Iterable[Any]) -> list[str]:
    """Tuples in an order, as texts that tell apart what Python finds equal; but UTC is UTC, whoever implements it."""

    def text(item: Any) -> str:
        if isinstance(item, tuple):
            return f"({', '.join(map(text, item))})"
        return item.isoformat() if isinstance(item, dt.datetime) else repr(item)

    return sorted(map(text, values))


def copied(value: Any) -> Any:
    """A deep copy, but for the one ABSENT."""
    return value if value is ABSENT else copy.deepcopy(value)
