"""Leaves expired rows out of what is read of stored state, by the rule of a full checkpoint.

A savepoint and a reader give what a full checkpoint at the same time would hold. Values that expired by the version's
processing time are left out if the state's `clean_up` removes them from snapshots. List elements expire one by one; a
list without living elements is left out.
"""

from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.ttl import LIFE_FIELD


def living_rows(table: pa.Table, descriptor: StateDescriptor, now_ms: int) -> pa.Table:
    """Return the rows of one state, none of them deleted, that have not expired by `now_ms`.

    All rows are returned if `now_ms` is below 0: then the version has no processing time.
    """
    ttl = descriptor.ttl
    if ttl is None or now_ms < 0 or not ttl.leaves_snapshots:
        return table
    born_before = pa.scalar(now_ms - ttl.duration_ms, type=pa.int64())
    if descriptor.kind is not StateKind.LIST:
        return table.filter(pc.greater(table[f"value.{LIFE_FIELD.name}"], born_before))
    lists = table["value"].combine_chunks()
    alive = pc.greater(pc.struct_field(lists.flatten(), LIFE_FIELD.name), born_before)
    if pc.all(alive, min_count=0).as_py():
        return table.filter(pc.greater(pc.list_value_length(lists), 0))
    kept = pc.list_parent_indices(lists).filter(alive)
    lengths = pc.value_counts(kept)
    counts = dict(zip(lengths.field("values").to_pylist(), lengths.field("counts").to_pylist(), strict=True))
    rows = sorted(counts)
    offsets = list(accumulate(map(counts.get, rows), initial=0))
    living = pa.ListArray.from_arrays(pa.array(offsets, type=lists.offsets.type), lists.flatten().filter(alive))
    left = table.take(pa.array(rows, type=pa.int64()))
    return left.set_column(left.column_names.index("value"), "value", living.cast(lists.type))
