"""Answers as Arrow columns, one for each feature.

Place on the data path: the last step of every answer in Arrow, and of the answer log. A column has one kind
of null. So the features of a row whose null means "not known" are named beside it, with the reasons.

A value may be right and still not fit its column: a sum of decimals over 38 digits, or one of longs over 64
bits. Then that value alone is unavailable in Arrow.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millpond.features.types import parse_type
from millpond.serving.messages import Target

_UNFIT = (pa.ArrowException, OverflowError, TypeError, ValueError)


class AnswerColumns:
    """The values of some answers, as columns.

    Args:
        target: the GroupBy or Join that was asked.
        features: the features wanted of it.
        rows: for each answer the values that are known, and the reasons for the others, as in a `FetchResponse`.

    Attributes:
        arrays: the values of each feature.
        unavailable: for each row, the features that are not known.
        errors: for each row, the reasons.
    """

    __slots__ = ("arrays", "errors", "unavailable")

    def __init__(
        self, target: Target, features: Sequence[str], rows: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]
    ) -> None:
        self.arrays: dict[str, pa.Array] = {}
        self.errors: list[Mapping[str, str]] = [errors for _, errors in rows]
        count = len(features)
        self.unavailable: list[list[str]] = [
            [] if len(values) == count else [name for name in features if name not in values] for values, _ in rows
        ]
        for name in features:
            self._add(name, target.features[name], [values.get(name) for values, _ in rows])

    def _add(self, name: str, type_: str, values: list[Any]) -> None:
        arrow = parse_type(type_).arrow()
        try:
            self.arrays[name] = pa.array(values, arrow)
        except _UNFIT:
            for row, value in enumerate(values):
                try:
                    pa.scalar(value, arrow)
                except _UNFIT as cause:
                    values[row] = None
                    self.unavailable[row].append(name)
                    reason = f"feature {name!r}: its value {value} does not fit a column of type {type_}: {cause}"
                    self.errors[row] = {**self.errors[row], name: reason}
            self.arrays[name] = pa.array(values, arrow)
