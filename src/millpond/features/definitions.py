"""What a user declares: a GroupBy, its keys, its inputs and its aggregations.

A definition is plain, frozen data and is checked whole when it is made, so that nothing that runs
later needs to doubt it. It knows nothing of how it is computed; ``compile_group_by`` turns it into a
plan. Its vocabulary (GroupBy, aggregation, operation, window) is Chronon's.

An error names the GroupBy, the field and the nearest value that would have been right.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from millpond.errors import OptionError
from millpond.features.windows import parse_window

TYPES = ("boolean", "double", "long", "string")
"""The types of a field: Python's bool, float, int (64 bits) and str; each may be None."""

OPERATIONS = ("average", "count", "max", "min", "sum")

_NUMERIC_ONLY = ("average", "sum")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name and its type, one of ``boolean``, ``double``, ``long``, ``string``.

    Raises:
        OptionError: the name is empty or the type unknown.

    >>> Field("origin", "string")
    Field(name='origin', type='string')
    """

    name: str
    type: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"a field's name must be a text of at least one letter, got {self.name!r}")
        if self.type not in TYPES:
            raise OptionError(
                f"field {self.name!r}: type {self.type!r} is none of {_listed(TYPES)}; "
                f"did you mean {_nearest(self.type, TYPES)!r}?"
            )


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One operation over one input, once for each window.

    The operations are ``count``, ``sum``, ``average``, ``min`` and ``max``. All skip inputs that are
    None. ``count`` without an input counts events. A share is the average of an input of 0 and 1 (or
    of booleans). A window of None is all time before the query.

    Raises:
        OptionError: an unknown operation, a missing input, a malformed window, or no window at all.

    >>> Aggregation("average", "dep_delay", windows=("1h", "7d", None)).feature_names
    ('dep_delay_average_1h', 'dep_delay_average_7d', 'dep_delay_average')
    """

    operation: str
    input: str | None = None
    windows: tuple[str | None, ...] = (None,)

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise OptionError(
                f"aggregation of {self.input!r}: operation {self.operation!r} is none of {_listed(OPERATIONS)}; "
                f"did you mean {_nearest(self.operation, OPERATIONS)!r}?"
            )
        if self.input is None and self.operation != "count":
            raise OptionError(f"aggregation {self.operation!r} needs an input; only 'count' goes without one")
        if isinstance(self.windows, str):
            raise OptionError(
                f"aggregation {self._label!r}: windows must be a tuple, got the text {self.windows!r}; "
                f"write ({self.windows!r},)"
            )
        object.__setattr__(self, "windows", tuple(self.windows))
        if not self.windows:
            raise OptionError(f"aggregation {self._label!r} has no windows; leave them out, or say (None,)")
        for window in self.windows:
            if window is not None:
                parse_window(window)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of its features, one for each window: input, operation, window."""
        return tuple(f"{self._label}_{window}" if window else self._label for window in self.windows)

    @property
    def _label(self) -> str:
        return f"{self.input}_{self.operation}" if self.input else self.operation


@dataclass(frozen=True, slots=True)
class GroupBy:
    """A named set of features over the events of one key.

    Args:
        name: names its datasets; letters, digits, ``_`` and ``-``.
        keys: the columns that together say whose features these are, in the order of the key.
        inputs: the columns that are aggregated. The event time is not among them: it is given
            beside the inputs, in milliseconds since the epoch, UTC.
        aggregations: what is computed, in the order of the features.

    Raises:
        OptionError: a part is missing, appears twice, or names an input that is not declared.

    >>> route = GroupBy(
    ...     "route",
    ...     keys=(Field("origin", "string"),),
    ...     inputs=(Field("dep_delay", "double"),),
    ...     aggregations=(Aggregation("count", windows=("1h",)), Aggregation("max", "dep_delay")),
    ... )
    >>> route.feature_names
    ('count_1h', 'dep_delay_max')
    """

    name: str
    keys: tuple[Field, ...]
    inputs: tuple[Field, ...] = ()
    aggregations: tuple[Aggregation, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise OptionError(
                f"GroupBy {self.name!r}: a name begins with a letter and goes on with letters, digits, _ or -; "
                f"did you mean {_nearest_name(self.name)!r}?"
            )
        for part, kind in (("keys", Field), ("inputs", Field), ("aggregations", Aggregation)):
            object.__setattr__(self, part, self._checked_parts(part, kind))
        for part in ("keys", "aggregations"):
            if not getattr(self, part):
                raise OptionError(f"GroupBy {self.name!r} has no {part}; declare at least one")
        self._refuse_doubles("key", [field.name for field in self.keys])
        self._refuse_doubles("input", [field.name for field in self.inputs])
        for aggregation in self.aggregations:
            self._check_input(aggregation)
        self._refuse_doubles("feature", list(self.feature_names))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of all features, in declared order."""
        return tuple(name for aggregation in self.aggregations for name in aggregation.feature_names)

    def _checked_parts(self, part: str, kind: type[_T]) -> tuple[_T, ...]:
        given = getattr(self, part)
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise OptionError(f"GroupBy {self.name!r}: {part} must be a tuple of {kind.__name__}, got {given!r}")
        parts = tuple(given)
        for item in parts:
            if not isinstance(item, kind):
                raise OptionError(f"GroupBy {self.name!r}: {part} must hold only {kind.__name__}, got {item!r}")
        return parts

    def _check_input(self, aggregation: Aggregation) -> None:
        if aggregation.input is None:
            return
        types = {field.name: field.type for field in self.inputs}
        if aggregation.input not in types:
            hint = f"did you mean {_nearest(aggregation.input, tuple(types))!r}?" if types else "no inputs are declared"
            raise OptionError(
                f"GroupBy {self.name!r}: aggregation {aggregation.operation!r} asks for input "
                f"{aggregation.input!r}, which is not among its inputs; {hint}"
            )
        if aggregation.operation in _NUMERIC_ONLY and types[aggregation.input] == "string":
            raise OptionError(
                f"GroupBy {self.name!r}: {aggregation.operation!r} of input {aggregation.input!r} needs numbers, "
                "its type is 'string'; declare it 'double' or 'long', or ask for 'count', 'min' or 'max'"
            )

    def _refuse_doubles(self, what: str, names: list[str]) -> None:
        doubles = sorted({name for name in names if names.count(name) > 1})
        if doubles:
            raise OptionError(f"GroupBy {self.name!r}: {what} {doubles[0]!r} is declared twice; drop or rename one")


def _nearest(text: object, valid: tuple[str, ...]) -> str:
    return difflib.get_close_matches(str(text).lower(), valid, n=1, cutoff=0.0)[0]


def _nearest_name(name: object) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9_-]+", "_", str(name)).strip("_-")
    return cleaned if _NAME.fullmatch(cleaned) else f"group_{cleaned}".rstrip("_")


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(repr(value) for value in values)
