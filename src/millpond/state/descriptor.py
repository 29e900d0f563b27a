"""What a state is called and what it holds: the declaration behind a handle.

A descriptor is data. It travels in the head of every checkpoint, so that a restart knows what the
stored bytes mean before it touches them.
"""

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from millpond.errors import OptionError


class StateKind(StrEnum):
    """The shape of one key's state."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True)
class StateDescriptor:
    """One declared state.

    Attributes:
        name: unique within the operator; names starting with `$` are Millpond's own.
        kind: value, list or map.
        value_schema: the fields of a value, of a list's element, or of a map's value.
        map_key_schema: the fields of a map's key; None for the other kinds.
    """

    name: str
    kind: StateKind
    value_schema: pa.Schema
    map_key_schema: pa.Schema | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise OptionError("a state needs a name that is not empty.")
        if (self.kind is StateKind.MAP) != (self.map_key_schema is not None):
            raise OptionError(f"state {self.name!r}: a map state, and only a map state, has a map key schema.")

    def encode(self) -> dict[str, object]:
        """The descriptor as plain values, for a head."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "value_schema": self.value_schema.serialize().to_pybytes(),
            "map_key_schema": None if self.map_key_schema is None else self.map_key_schema.serialize().to_pybytes(),
        }

    @staticmethod
    def decode(plain: dict[str, object]) -> "StateDescriptor":
        """The inverse of `encode`."""
        map_key = plain["map_key_schema"]
        return StateDescriptor(
            name=str(plain["name"]),
            kind=StateKind(str(plain["kind"])),
            value_schema=pa.ipc.read_schema(pa.py_buffer(plain["value_schema"])),
            map_key_schema=None if map_key is None else pa.ipc.read_schema(pa.py_buffer(map_key)),
        )

    def describe(self) -> str:
        """One line for people: `map visits (page: string) -> (count: int64)`."""
        value = ", ".join(f"{field.name}: {field.type}" for field in self.value_schema)
        if self.map_key_schema is None:
            return f"{self.kind} {self.name} ({value})"
        key = ", ".join(f"{field.name}: {field.type}" for field in self.map_key_schema)
        return f"{self.kind} {self.name} ({key}) -> ({value})"
