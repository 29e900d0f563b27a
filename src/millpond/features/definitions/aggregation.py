"""One operation over one column, once for each window and bucket."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from millpond.errors import OptionError
from millpond.features.definitions.faults import Faults, listed
from millpond.features.operations import OPERATION_ALIASES, OPERATIONS
from millpond.features.windows import parse_window
from millpond.suggestions import did_you_mean

TAKES_K = tuple(name for name, operation in OPERATIONS.items() if operation.parameter == "k")
"""The operations that need ``k``."""

MAX_K = 10_000
"""The largest ``k``: more values than this make no useful feature."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One operation over one column, once for each window and bucket.

    All operations skip values that are None, and ``count`` without a column counts events. A share is
    the average of a column of 0 and 1 (or of booleans). An array's elements are aggregated one by one,
    a map's values per key. A window of None is all time before the query.

    Args:
        operation: such as ``count``, ``sum``, ``average``, ``last_k``, ``approx_unique_count``.
        column: the input that is aggregated; None counts events.
        windows: such as ``"30m"``, ``"6h"``, ``"7d"``.
        k: how many values ``first_k``, ``last_k``, ``top_k``, ``bottom_k`` and ``approx_histogram_k``
            return, and where ``bounded_unique_count`` stops counting; 1 to 10,000.
        percentiles: those that ``approx_percentile`` returns, each from 0 to 1.
        buckets: string columns. Each has features of its own, whose value is a mapping from each of the column's
            values to that value's own result.
        element_wise: aggregate arrays position by position; the answer is a list.

    Raises:
        OptionError: an unknown operation, a missing column or parameter, a malformed window. The error
            names all faults.

    >>> Aggregation("average", "dep_delay", windows=("1h", "7d", None)).feature_names
    ('dep_delay_average_1h', 'dep_delay_average_7d', 'dep_delay_average')
    >>> Aggregation("average", "price", ("30d",), buckets=("merchant",)).feature_names
    ('price_average_30d_by_merchant',)
    >>> Aggregation("last_k", "title", ("1d",), k=2).feature_names
    ('title_last2_1d',)
    """

    operation: str
    column: str | None = None
    windows: tuple[str | None, ...] = (None,)
    k: int | None = None
    percentiles: tuple[float, ...] | None = None
    buckets: tuple[str, ...] = ()
    element_wise: bool = False

    def __post_init__(self) -> None:
        faults = Faults(f"aggregation {self._label!r}")
        if self.operation not in OPERATIONS:
            faults.add(
                f"operation {self.operation!r} is none of {listed(OPERATIONS)}"
                f"{did_you_mean(self.operation, OPERATIONS, OPERATION_ALIASES)}"
            )
        elif self.column is None and self.operation != "count":
            faults.add(f"{self.operation!r} needs a column; only 'count' goes without one")
        self._check_parameters(faults)
        self._check_windows(faults)
        object.__setattr__(self, "buckets", faults.parts("buckets", self.buckets, str))
        faults.doubles("bucket", self.buckets)
        faults.doubles("window", [str(window) for window in self.windows])
        if self.element_wise and self.column is None:
            faults.add("element_wise needs a column of arrays")
        faults.report()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of its features: column, operation, window, bucket."""
        return tuple(name for name, _, _ in self.features)

    @property
    def features(self) -> tuple[tuple[str, str | None, str | None], ...]:
        """Its features, as (name, window, bucket): all windows of each bucket, or of None without buckets."""
        return tuple(
            (
                self._label + (f"_{window}" if window else "") + (f"_by_{bucket}" if bucket else ""),
                window,
                bucket,
            )
            for bucket in (self.buckets or (None,))
            for window in self.windows
        )

    def _check_parameters(self, faults: Faults) -> None:
        if self.operation in TAKES_K:
            if type(self.k) is not int or not 0 < self.k <= MAX_K:
                faults.add(f"{self.operation!r} needs k, a whole number from 1 to {MAX_K}, got {self.k!r}")
        elif self.k is not None:
            faults.add(f"{self.operation!r} takes no k, got {self.k!r}; leave it out")
        if self.operation == "approx_percentile":
            object.__setattr__(self, "percentiles", self._checked_percentiles(faults))
        elif self.percentiles is not None:
            faults.add(f"{self.operation!r} takes no percentiles, got {self.percentiles!r}; leave them out")

    def _checked_percentiles(self, faults: Faults) -> tuple[float, ...]:
        given = self.percentiles
        if not isinstance(given, Iterable) or isinstance(given, str) or not tuple(given):
            faults.add(f"'approx_percentile' needs percentiles, such as (0.5, 0.99), got {given!r}")
            return ()
        for one in given:
            if not isinstance(one, int | float) or isinstance(one, bool) or not 0 <= one <= 1 or math.isnan(one):
                faults.add(f"a percentile lies from 0 to 1, got {one!r}")
                return ()
        return tuple(map(float, given))

    def _check_windows(self, faults: Faults) -> None:
        if isinstance(self.windows, str) or not isinstance(self.windows, Iterable):
            faults.add(f"windows must be a tuple, got {self.windows!r}; write ({self.windows!r},)")
            object.__setattr__(self, "windows", (None,))
            return
        object.__setattr__(self, "windows", tuple(self.windows))
        if not self.windows:
            faults.add("it has no windows; leave them out, or say (None,)")
        for window in self.windows:
            if window is not None:
                try:
                    parse_window(window)
                except OptionError as error:
                    faults.add(str(error))

    @property
    def _label(self) -> str:
        operation = str(self.operation)
        if operation in TAKES_K:
            head, _, _ = operation.rpartition("_k") if operation.endswith("_k") else (operation, "", "")
            operation = f"{head}{self.k}"
        return f"{self.column}_{operation}" if self.column else operation
