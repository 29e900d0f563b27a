"""Combine rows before the shuffle of the Arrow form, with the processor's `combine`.

Place on the data path: in the map task, before rows are packed by shard. Only the rows that `combine` returns cross
the shuffle and reach `handleInputTable`.

Invariant: the columns are those that `combine` returned for an empty table when the operator was planned. Each row has
a key of the rows that it was made of, since it is shuffled by that key's hash. The types of columns outside the key
are taken from the rows that `combine` returns, and not from the plan: NumPy chooses other types for no rows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.errors import DataError, OptionError
from millpond.spark.forms.arrow_handles import cast_column
from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor
from millpond.spark.forms.grouping import grouped, keys_and_grouping, shown
from millpond.spark.shuffle.arrow_lots import lots
from millpond.spark.spec.operator import OperatorSpec

_ROWS_AT_ONCE = 1_000_000
"""How many rows are combined at once. The more there are, the fewer rows are left after combining."""


def combines(processor: Any) -> bool:
    """Whether a processor has a `combine` of its own."""
    return (
        isinstance(processor, ArrowStatefulProcessor) and type(processor).combine is not ArrowStatefulProcessor.combine
    )


@dataclass(frozen=True)
class Combining:
    """The plan of how a processor combines rows.

    Attributes:
        processor: the processor with the `combine`.
        key_schema: the schema of the keys.
        key_positions: the positions of the keys among the rows' columns.
        row_names: the columns that user code sees.
        schema: the schema of what `combine` returns for no rows, with the key's own types.
    """

    processor: ArrowStatefulProcessor
    key_schema: pa.Schema
    key_positions: tuple[int, ...]
    row_names: tuple[str, ...]
    schema: pa.Schema

    @staticmethod
    def planned(spec: OperatorSpec, copy: Any, rows: pa.Schema) -> "Combining | None":
        """Return how a spec's processor combines rows of this schema; None if it does not.

        `copy` is a copy of the processor, whose `combine` is called with no rows to find the columns.

        Raises:
            OptionError: late rows must be dropped, and cannot be recognised once they are combined.
            DataError: `combine` returns no table, or one without the key's columns.
        """
        if not combines(spec.processor):
            return None
        if spec.time_mode == "eventtime" and not spec.keep_late:
            raise OptionError(
                f"{type(copy).__name__} combines rows before it is known which of them are late. Say late='keep', or "
                "leave combine out."
            )
        key_schema = spec.key_schema
        asked = Combining(copy, key_schema, spec.key_positions, spec.row_names, pa.schema([]))
        made, _ = asked._called(rows.empty_table())
        fields = [
            key_schema.field(name) if name in key_schema.names else pa.field(name, made.schema.field(name).type)
            for name in made.column_names
        ]
        return replace(asked, processor=spec.processor, schema=pa.schema(fields))

    def spec(self, spec: OperatorSpec) -> OperatorSpec:
        """Return the spec of the operator for combined rows."""
        positions = tuple(map(self.schema.get_field_index, self.key_schema.names))
        return replace(spec, key_positions=positions, row_names=tuple(self.schema.names))

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Combine a task's rows, about a million at a time. The last column, in and out, is the hash of the key."""
        for rows in lots(batches, _ROWS_AT_ONCE):
            made, first = self.table(rows)
            hashes = rows.column(rows.num_columns - 1).take(pa.array(first))
            yield from made.append_column("hash", hashes).combine_chunks().to_batches()

    def table(self, rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Combine rows. Return the combined rows, and for each the number of the first input row with its key."""
        made, first_of_keys = self._called(rows)
        if made.column_names != self.schema.names:
            raise DataError(
                f"{self._who} gave a table with the columns {made.column_names}; for no rows it gave "
                f"{self.schema.names}. Give the same columns for any rows."
            )
        for at, field in enumerate(made.schema):
            if field.name in self.key_schema.names:
                kind = self.key_schema.field(field.name)
                made = made.set_column(at, kind, cast_column(made.column(at), kind, f"output of {self._who}"))
        return made, first_of_keys

    def _called(self, rows: pa.Table) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        keys, grouping = keys_and_grouping(rows, self.key_positions, self.key_schema)
        made = self.processor.combine(keys, shown(rows, self.row_names), pa.array(grouping.index))
        if not isinstance(made, pa.Table | pa.RecordBatch):
            raise DataError(f"{self._who} gave {type(made).__name__} {made!r}; expected a pyarrow.Table.")
        made = pa.table(made)
        names = self.key_schema.names
        if any(made.column_names.count(name) != 1 for name in names):
            raise DataError(
                f"{self._who} gave a table with the columns {made.column_names}; expected each of the key's columns "
                f"{names} in it, once."
            )
        return made, grouping.first[self._key_numbers(keys, made.select(names))]

    def _key_numbers(self, keys: pa.Table, of_made: pa.Table) -> npt.NDArray[np.int64]:
        """Return the key's number for each row that was made."""
        given = pa.table([cast_column(of_made.column(f.name), f, self._who) for f in keys.schema], schema=keys.schema)
        if given.equals(keys):
            return np.arange(len(keys))
        both = grouped(pa.concat_tables([keys, given]))
        numbers = both.index[len(keys) :]
        if len(both.first) > len(keys):
            alien = given.slice(int(np.argmax(numbers >= len(keys))), 1).to_pylist()[0]
            raise DataError(f"{self._who} gave a row for the key {alien}, which none of its rows has.")
        return numbers

    @property
    def _who(self) -> str:
        return f"{type(self.processor).__name__}.combine"
