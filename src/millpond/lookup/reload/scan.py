"""What a full cache is loaded from: one scan of the whole table.

The invariant: a scan gives a whole, immutable Arrow table or raises; half a table is never taken
for the table.
"""

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

import pyarrow as pa


@runtime_checkable
class LookupScan(Protocol):
    """A source that can be read whole. One of your own needs these three and no base class.

    If it has a `scan_batches()`, that is used instead of `scan()`; on Spark the driver then never has the whole table
    in memory. If it has a `version()`, a reload is skipped while that is the same. If it has a `close()`, that is
    called when the table closes; it may be scanned again afterwards.
    """

    key_schema: pa.Schema
    row_schema: pa.Schema

    def scan(self) -> pa.Table:
        """Every row, with the columns of `row_schema` and `key_schema`."""


@runtime_checkable
class ScansInBatches(Protocol):
    """A scan that need not have the whole table in memory."""

    def scan_batches(self) -> pa.RecordBatchReader:
        """The same as `scan`, batch by batch; an error in the middle is raised by the reader."""


@runtime_checkable
class KnowsVersion(Protocol):
    """A scan that tells whether the table has changed, for less than it takes to read it."""

    def version(self) -> Hashable | None:
        """What is another value after every change of the table; None where nobody knows. Asked before each load."""


@runtime_checkable
class Closeable(Protocol):
    """A scan that holds something between loads."""

    def close(self) -> None:
        """Let go of it."""
