"""Dead letters of a lookup join with `on_error="dead-letter"`: events whose lookup failed.

The join in a worker makes them. A letter has the fields of every dead letter of Millpond (`dead_letters`): the
key, the event, and the reason. The invariant: **an event comes out joined or as a letter, never both**.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext

from millpond.spark.spec.operator import DEAD_LETTER

_BATCH_PROPERTY = "streaming.sql.batchId"


def failed_events(numbers: npt.NDArray[np.int64], failures: Mapping[int, tuple[str, str]]) -> npt.NDArray[np.bool_]:
    """Return which events have a failed key. `numbers` has the key number of each event."""
    return np.isin(numbers, np.fromiter(failures, np.int64, len(failures)))


def letters(
    events: pa.RecordBatch,
    failures: list[tuple[str, str]],
    letter_type: pa.StructType,
    joined: pa.Schema,
) -> pa.RecordBatch:
    """Return rows that hold only a dead letter, one for each event. `failures` has error and traceback of each."""
    task = TaskContext.get()
    batch_id = task and task.getLocalProperty(_BATCH_PROPERTY)
    key_fields = list(letter_type.field("key").type)
    keys = [events.column(field.name).cast(field.type) for field in key_fields]
    rows_type = letter_type.field("rows").type
    row_fields = list(rows_type.value_type)
    rows = [events.column(place).cast(field.type) for place, field in enumerate(row_fields)]
    one_each = pa.array(range(events.num_rows + 1), pa.int32())
    parts = {
        "key": pa.StructArray.from_arrays(keys, fields=key_fields),
        "rows": pa.ListArray.from_arrays(one_each, pa.StructArray.from_arrays(rows, fields=row_fields), type=rows_type),
        "timer_ms": pa.nulls(events.num_rows, pa.int64()),
        "error": pa.array([error for error, _ in failures], pa.string()),
        "traceback": pa.array([text for _, text in failures], pa.string()),
        "batch_id": pa.array([int(batch_id) if batch_id else None] * events.num_rows, pa.int64()),
    }
    fields = list(letter_type)
    letter = pa.StructArray.from_arrays([parts[field.name].cast(field.type) for field in fields], fields=fields)
    nothing = [pa.nulls(events.num_rows, field.type) for field in joined]
    return pa.RecordBatch.from_arrays([*nothing, letter], schema=joined.append(pa.field(DEAD_LETTER, letter_type)))
