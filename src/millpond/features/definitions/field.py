"""A column's name and type.

The types are Spark's: boolean, int, long, float, double, string, binary, date, timestamp, decimals,
and arrays and maps of these. A map's keys are texts or whole numbers. Nothing nests deeper, because an
aggregation reaches one level into a value.
"""

from dataclasses import dataclass

from millpond.errors import OptionError
from millpond.features.types import DataType, parse_type


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name and its type.

    The types are ``boolean``, ``int``, ``long``, ``float``, ``double``, ``string``, ``binary``,
    ``date``, ``timestamp``, ``decimal(p,s)``, ``array<T>`` and ``map<K,T>`` with a scalar ``T`` and
    ``K`` one of ``string``, ``int``, ``long``.

    Raises:
        OptionError: the name is empty or the type is unknown.

    >>> Field("origin", "string")
    Field(name='origin', type='string')
    """

    name: str
    type: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"a field's name must be a text of at least one letter, got {self.name!r}")
        try:
            parsed = parse_type(self.type)
        except OptionError as error:
            raise OptionError(f"field {self.name!r}: {error}") from None
        if parsed.element is not None and parsed.element.element is not None:
            raise OptionError(
                f"field {self.name!r}: type {parsed.name!r} nests arrays or maps; their elements are scalars"
            )
        object.__setattr__(self, "type", parsed.name)

    @property
    def parsed(self) -> DataType:
        """The type, parsed."""
        return parse_type(self.type)
