"""Cells in a segment as the bytes that a backend keeps on disk: copied as they are, and decoded only if needed.

A raw segment has three columns, `key_group`, `raw.place` and `raw.stored`: the pairs of
`millpond.state.backend.cell_bytes`. The first two bytes of a place are the writer's number of the state and mean
nothing to the reader. There are no deleted cells: only bases are raw.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from millpond.state.backend.cell_bytes import cell_bytes
from millpond.state.backend.pairs import Pairs
from millpond.state.backend.protocols import Cells
from millpond.state.types.descriptor import StateDescriptor, StateKind

_PLACE, _STORED = "raw.place", "raw.stored"


def is_raw(table: pa.Table) -> bool:
    """Return whether a segment's table holds bytes instead of columns."""
    return _PLACE in table.column_names


def raw_table(key_group: int, pairs: Pairs) -> pa.Table:
    """Return the cells of one key group as a raw table."""
    return pa.table(
        {
            "key_group": pa.repeat(pa.scalar(key_group, pa.int32()), len(pairs)),
            _PLACE: pa.array(pairs.places, pa.binary()),
            _STORED: pa.array(pairs.stored, pa.binary()),
        }
    )


def raw_groups(table: pa.Table) -> Iterator[tuple[int, Pairs]]:
    """Yield the cells of each key group as bytes."""
    for key_group in pc.unique(table["key_group"]).to_pylist():
        part = table.filter(pc.equal(table["key_group"], key_group))
        yield key_group, Pairs(part[_PLACE].to_pylist(), part[_STORED].to_pylist())


def raw_cells(descriptor: StateDescriptor, table: pa.Table) -> Cells:
    """Decode the cells in a raw table."""
    form = cell_bytes(descriptor, 0)
    found = Cells(map_keys=[] if descriptor.kind is StateKind.MAP else None)
    for key_group, pairs in raw_groups(table):
        cells = form.cells(key_group, pairs)
        found.key_groups += cells.key_groups
        found.keys += cells.keys
        found.values += cells.values
        if found.map_keys is not None:
            found.map_keys += cells.map_keys or []
    return found
