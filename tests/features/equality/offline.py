"""The offline side without Spark: the sorted rows that a task of the training set gets, and its answers."""

import pyarrow as pa

from millpond.features.point_in_time.changing_rows import ChangingRows
from millpond.features.point_in_time.column_features import arrow_value
from millpond.features.point_in_time.sorted_rows import PointInTime, edge_values
from millpond.features.types import parse_type

LONG_AGO_MS = -(1 << 60)


def training_set(group_by, events, queries, *, batch_rows=7, piece_rows=16):
    """Answer (key, time) queries over (key, time, inputs) events."""
    rows = [(key, time, False, inputs, ()) for key, time, inputs in events]
    rows += [(key, time, True, None, ()) for key, time in queries]
    return _answered(PointInTime(group_by, piece_rows), group_by, rows, batch_rows)


def changing_training_set(group_by, changes, queries, *, batch_rows=7):
    """Answer queries over changes: (key, time from which it counts or None, own time, inputs, is taken away)."""
    rows = [(key, counting, False, inputs, (time, gone)) for key, counting, time, inputs, gone in changes]
    rows += [(key, time, True, None, (None, None)) for key, time in queries]
    return _answered(ChangingRows(group_by), group_by, rows, batch_rows)


def _answered(features, group_by, rows, batch_rows):
    asked = [row for row in rows if row[2]]
    numbered = [(*row, asked.index(row) if row[2] else None) for row in rows]
    numbered.sort(key=lambda row: (row[0], LONG_AGO_MS if row[1] is None else row[1], not row[2]))
    types = [parse_type(field.type) for field in group_by.inputs]
    nothing = (None,) * len(types)
    columns = [
        pa.array([row[0][n] for row in numbered], parse_type(field.type).arrow())
        for n, field in enumerate(group_by.keys)
    ]
    columns += [pa.array([row[1] for row in numbered], pa.int64()), pa.array([row[2] for row in numbered], pa.bool_())]
    columns += [
        pa.array([arrow_value((row[3] or nothing)[n], type_) for row in numbered], type_.arrow())
        for n, type_ in enumerate(types)
    ]
    for n, type_ in enumerate((pa.int64(), pa.bool_())[: len(numbered[0][4])]):
        columns.append(pa.array([row[4][n] for row in numbered], type_))
    columns.append(pa.array([row[5] for row in numbered], pa.int64()))
    names = [*(f"column_{n}" for n in range(len(columns) - 1)), "number"]
    found = {}
    for table in features.answers(pa.table(columns, names=names).to_batches(max_chunksize=batch_rows)):
        values = [
            edge_values(column.combine_chunks(), parse_type(type_))
            for column, type_ in zip(table.columns[1:], features.types.values(), strict=True)
        ]
        for row, number in enumerate(table.column("number").to_pylist()):
            found[number] = {name: column[row] for name, column in zip(features.types, values, strict=True)}
    return [found[asked.index(row)] for row in asked]
