"""The source of a full cache: a scan of the whole table.

The invariant: a scan returns a complete, immutable Arrow table or raises. A partial table is never
taken for the whole.
"""

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

import pyarrow as pa


@runtime_checkable
class LookupScan(Protocol):
    """A source that can be read as a whole. Your own scan needs these three members and no base class.

    Three methods are optional:

    - `scan_batches()` is used instead of `scan()`. On Spark the driver then never has the whole table in memory.
    - `version()`: a reload is skipped while its result stays the same.
    - `close()` is called when the table closes. The source may be scanned again afterwards.
    """

    key_schema: pa.Schema
    row_schema: pa.Schema

    def scan(self) -> pa.Table:
        """Return every row, with the columns of `row_schema` and `key_schema`."""


@runtime_checkable
class ScansInBatches(Protocol):
    """A scan that can read the table without having all of it in memory."""

    def scan_batches(self) -> pa.RecordBatchReader:
        """Return what `scan` does, batch by batch. The reader raises errors that occur on the way."""


@runtime_checkable
class KnowsVersion(Protocol):
    """A scan that can tell cheaply, without reading the table, whether it has changed."""

    def version(self) -> Hashable | None:
        """Return a value that differs after every change of the table; None if unknown. Called before each load."""


@runtime_checkable
class Closeable(Protocol):
    """A scan that holds resources between loads."""

    def close(self) -> None:
        """Release the resources."""
