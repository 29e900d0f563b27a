"""The table of operations: what an aggregation can ask for, by name.

An operation consists of its cells, the types it takes, the type of its value, and the function that turns cells
into the value (``cells.cell.Operation``). Each family has one file in ``cells``. To add an operation, write it
there, and add one line here.

| can delete                                             | exact to the bit                             |
|--------------------------------------------------------|----------------------------------------------|
| count, sum, average, all moments, histogram            | all but the three approx operations          |
"""

from typing import TYPE_CHECKING

from millpond.errors import OptionError
from millpond.features.cells import counts_and_sums, extremes, moments, ordered, sets_and_maps, sketches
from millpond.features.cells.cell import Operation
from millpond.features.types import parse_type
from millpond.suggestions import Aliases

if TYPE_CHECKING:
    from millpond.features.definitions.aggregation import Aggregation
    from millpond.features.definitions.field import Field

OPERATION_ALIASES: Aliases = {
    **dict.fromkeys(("avg", "mean"), ("average",)),
    **dict.fromkeys(("std", "stdev", "stddev_pop", "stddev_samp"), ("stddev",)),
    **dict.fromkeys(("var", "var_pop", "var_samp"), ("variance",)),
    **dict.fromkeys(("cardinality", "count_distinct", "distinct", "nunique"), ("unique_count",)),
    **dict.fromkeys(("approx_count_distinct", "approx_distinct"), ("approx_unique_count",)),
    **dict.fromkeys(("median", "percentile", "quantile", "approx_quantile"), ("approx_percentile",)),
    **dict.fromkeys(("maximum", "greatest"), ("max",)),
    **dict.fromkeys(("minimum", "least"), ("min",)),
    "total": ("sum",),
}
"""The names of these operations in other systems."""

OPERATIONS: dict[str, Operation] = {
    "approx_histogram_k": sketches.APPROX_HISTOGRAM_K,
    "approx_percentile": sketches.APPROX_PERCENTILE,
    "approx_unique_count": sketches.APPROX_UNIQUE_COUNT,
    "average": counts_and_sums.AVERAGE,
    "bottom_k": ordered.BOTTOM_K,
    "bounded_unique_count": sets_and_maps.BOUNDED_UNIQUE_COUNT,
    "count": counts_and_sums.COUNT,
    "first": ordered.FIRST,
    "first_k": ordered.FIRST_K,
    "histogram": sets_and_maps.HISTOGRAM,
    "kurtosis": moments.KURTOSIS,
    "last": ordered.LAST,
    "last_k": ordered.LAST_K,
    "max": extremes.MAX,
    "min": extremes.MIN,
    "skew": moments.SKEW,
    "stddev": moments.STDDEV,
    "sum": counts_and_sums.SUM,
    "top_k": ordered.TOP_K,
    "unique_count": sets_and_maps.UNIQUE_COUNT,
    "variance": moments.VARIANCE,
}
"""Every operation by its name."""


def check_input(aggregation: "Aggregation", field: "Field") -> None:
    """Raise if an aggregation cannot take a column.

    Raises:
        OptionError: the column's type does not fit; the error names the types that do.
    """
    operation = OPERATIONS[aggregation.operation]
    type_ = parse_type(field.type)
    if type_.scalar.kind not in operation.types:
        fitting = [name for name, other in OPERATIONS.items() if type_.scalar.kind in other.types]
        needed = "numbers: " if set(operation.types) <= set(counts_and_sums.NUMBERS) else ""
        raise OptionError(
            f"{aggregation.operation!r} of column {field.name!r} needs {needed}{', '.join(operation.types)}, or "
            f"arrays or maps of these; its type is {field.type!r}; declare it as one of them, or ask for one of "
            f"{', '.join(fitting)}"
        )
    if aggregation.element_wise and type_.kind != "array":
        raise OptionError(
            f"element_wise {aggregation.operation!r} of column {field.name!r} needs an array, its type is "
            f"{field.type!r}; leave element_wise out"
        )
