"""The third form of a keyed operator, which PySpark does not have: one call for each shard and batch, over Arrow.

It is for vectorised code (NumPy, Arrow, Polars, a model that scores a batch). No Python object is made for a
row. The state is the same as that of the other forms.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import TimerValues

from millpond.spark.forms.arrow_handles import ArrowProcessorHandle


class ArrowStatefulProcessor(ABC):
    """The processor for `keyed(...).transformWithStateInArrow`. A new copy of it is made for every shard and batch.

    >>> import numpy as np, pyarrow.compute as pc
    >>> class Visits(ArrowStatefulProcessor):
    ...     def init(self, handle):
    ...         self.seen = handle.getValueState("seen", "count long")
    ...
    ...     def handleInputTable(self, keys, rows, key_index, timerValues):
    ...         before = pc.fill_null(self.seen.get_many(keys)["count"], 0)
    ...         count = pc.add(before, pa.array(np.bincount(key_index)))
    ...         self.seen.update_many(keys, {"count": count})
    ...         yield keys.append_column("visits", count)
    """

    @abstractmethod
    def init(self, handle: ArrowProcessorHandle) -> None:
        """Declare the states."""

    @abstractmethod
    def handleInputTable(
        self, keys: pa.Table, rows: pa.Table, key_index: pa.Array, timerValues: TimerValues
    ) -> Iterator[pa.Table]:
        """Process all rows that a batch has for a shard.

        Args:
            keys: the distinct keys, one in each row, under the key columns' names.
            rows: the rows. Those of one key are in the order in which they came. Times are in UTC.
            key_index: for each row, the number of its key in `keys` (int64).
            timerValues: the batch's times, in ms.

        Returns:
            tables, or record batches, with the columns of the output schema.
        """

    def combine(self, keys: pa.Table, rows: pa.Table, key_index: pa.Array) -> pa.Table:
        """Make fewer rows of many, before they cross the shuffle. Optional: it is only called if it is overridden.

        It is called in the task that reads the rows, with up to about a million rows at a time. The rows that it
        returns are shuffled in their place. `handleInputTable` gets the results of all calls for a shard, so a key has
        one row, or several, from each call. It has no states and no times, and `init` was not called. It is also
        called with no rows when the query is planned, to find the columns.

        Late rows cannot be recognised once they are combined, so in event time it needs `late="keep"`.

        Args:
            keys: the distinct keys of these rows.
            rows: some rows of a batch, in the order in which they came. Times are in UTC.
            key_index: for each row, the number of its key in `keys` (int64).

        Returns:
            a table, or record batch, with the key's columns and any others.

        >>> class Visits(ArrowStatefulProcessor):
        ...     def init(self, handle):
        ...         self.seen = handle.getValueState("seen", "count long")
        ...
        ...     def combine(self, keys, rows, key_index):
        ...         return keys.append_column("count", pa.array(np.bincount(key_index, minlength=len(keys))))
        ...
        ...     def handleInputTable(self, keys, rows, key_index, timerValues):
        ...         before = pc.fill_null(self.seen.get_many(keys)["count"], 0)
        ...         more = np.bincount(key_index, weights=rows["count"], minlength=len(keys)).astype(int)
        ...         self.seen.update_many(keys, {"count": pc.add(before, pa.array(more))})
        ...         yield keys.append_column("visits", self.seen.get_many(keys)["count"])
        """
        raise NotImplementedError

    def handleExpiredTimers(
        self,
        keys: pa.Table,  # noqa: ARG002
        expiry_ms: pa.Array,  # noqa: ARG002
        timerValues: TimerValues,  # noqa: ARG002
    ) -> Iterator[pa.Table]:
        """Process all timers that are due in one call, in the order of their time.

        A key with several due timers is in `keys` several times. The timers are deleted afterwards.
        """
        return iter(())

    def handleInitialTable(  # noqa: B027 - many processors have no use for it
        self, keys: pa.Table, rows: pa.Table, key_index: pa.Array, timerValues: TimerValues
    ) -> None:
        """Process the rows of an initial state. It is called before the first batch's own rows."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Free resources at the end of the batch."""
