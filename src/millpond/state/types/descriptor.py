"""The declaration of a state: its name and what it holds.

A descriptor is data. The manifest of every checkpoint contains it, so a restart knows what the stored bytes mean before
it reads them.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa

from millpond.errors import OptionError
from millpond.state.types.arrow_values import encodes
from millpond.state.types.codec import ValueCodec
from millpond.state.types.object_codec import OBJECT_SCHEMA, ObjectCodec
from millpond.state.types.rows import RowCodec
from millpond.state.types.serializer import Serializer, raw_serializer
from millpond.state.types.ttl import Ttl, TtlCodec


class StateKind(StrEnum):
    """The shape of one key's state."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True)
class StateDescriptor:
    """One declared state.

    Attributes:
        name: unique within the operator. Names that begin with `$` are Millpond's own.
        kind: value, list or map.
        value_schema: the fields of a value, of a list's element, or of a map's value.
        map_key_schema: the fields of a map's key; None for the other kinds.
        serializer: encodes values that are Python objects; None if they are tuples of the schema.
        ttl: how long values live; None for ever.
    """

    name: str
    kind: StateKind
    value_schema: pa.Schema
    map_key_schema: pa.Schema | None = None
    serializer: Serializer | None = None
    ttl: Ttl | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not encodes(self.name):
            raise OptionError(
                f"a state is named {type(self.name).__name__} {self.name!r}; expected a text that is not empty and is "
                "valid Unicode."
            )
        if (self.kind is StateKind.MAP) != (self.map_key_schema is not None):
            raise OptionError(f"state {self.name!r}: a map state, and only a map state, has a map key schema.")

        if self.serializer is not None and self.value_schema != OBJECT_SCHEMA:
            raise OptionError(f"state {self.name!r}: a state of Python objects has the value schema OBJECT_SCHEMA.")

    def codec(self, what: object) -> ValueCodec:
        """Return the codec of this state's values. `what` names them in errors. Its text is built only then."""
        values: ValueCodec = (
            RowCodec(self.value_schema, what) if self.serializer is None else ObjectCodec(self.serializer, what)
        )
        return values if self.ttl is None else TtlCodec(values)

    def encode(self) -> dict[str, object]:
        """Return the descriptor as plain values, for a manifest."""
        plain: dict[str, object] = {
            "name": self.name,
            "kind": self.kind.value,
            "value_schema": self.value_schema.serialize().to_pybytes(),
            "map_key_schema": None if self.map_key_schema is None else self.map_key_schema.serialize().to_pybytes(),
        }
        if self.serializer is not None:
            plain["serializer"] = self.serializer.text
        if self.ttl is not None:
            plain["ttl"] = {**asdict(self.ttl), "clean_up": list(self.ttl.clean_up)}
        return plain

    @staticmethod
    def decode(plain: dict[str, Any]) -> "StateDescriptor":
        """Decode what `encode` returned. The types of Python objects are lost: their values become bytes."""
        serializer, ttl = plain.get("serializer"), plain.get("ttl")
        map_key = plain["map_key_schema"]
        return StateDescriptor(
            name=str(plain["name"]),
            kind=StateKind(str(plain["kind"])),
            value_schema=pa.ipc.read_schema(pa.py_buffer(plain["value_schema"])),
            map_key_schema=None if map_key is None else pa.ipc.read_schema(pa.py_buffer(map_key)),
            serializer=None if serializer is None else raw_serializer(serializer),
            ttl=None if ttl is None else Ttl(**{**ttl, "clean_up": tuple(ttl["clean_up"])}),
        )

    def describe(self) -> str:
        """Describe the state in one line for people.

        >>> StateDescriptor("visits", StateKind.MAP, pa.schema([("count", pa.int64())]),
        ...                 pa.schema([("page", pa.string())]), ttl=Ttl(60_000)).describe()
        'map visits (page: string) -> (count: int64) ttl 60000 ms'
        """
        words = [f"{self.kind} {self.name}"]
        if self.map_key_schema is not None:
            words += [f"({_described(self.map_key_schema)})", "->"]
        words.append(f"({_described(self.value_schema) if self.serializer is None else self.serializer.text})")
        if self.ttl is not None:
            words.append(f"ttl {self.ttl.describe()}")
        return " ".join(words)


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
