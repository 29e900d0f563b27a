"""Starts a new operator with the state of a savepoint, with any number of shards and key groups.

A savepoint's rows have the key groups of the operator that wrote it. If the new operator has as many, a shard takes
the rows of its own key groups. If it has another number, the key groups are computed anew from the keys. A key's
group is its hash modulo their number. So a row can belong to a shard only if the two groups are equal modulo the
greatest common divisor of both numbers. The other rows are skipped without hashing.

Invariant: every file that the shard needs was found whole before a row is loaded. Files are read one by one, first to
prove them and then to load them, so that a savepoint may be larger than memory.
"""

import math
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.checkpoint.format.manifest import Manifest
from millpond.state.checkpoint.format.savepoint_manifest import SavepointManifest
from millpond.state.checkpoint.format.segment import of_key_groups
from millpond.state.checkpoint.restoring import StoredStates
from millpond.state.checkpoint.savepoint import Savepoint
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.key_groups import key_group_of
from millpond.state.types.rows import RowCodec

_GROUP = "key_group"


def load_savepoint(
    savepoint: Savepoint,
    manifest: Manifest,
    backend: KeyedStateBackend,
    declared: Iterable[StateDescriptor],
    now_ms: int | None,
) -> tuple[StateDescriptor, ...]:
    """Load the rows of a new shard's keys into its empty backend. Return every state there is then.

    An OptionError shows both declarations of a state whose change is rejected. A CorruptionError names a file.
    """
    contents = savepoint.contents
    states = StoredStates.of(contents.states, declared, contents.key_schema, now_ms)
    stays = contents.max_parallelism == manifest.max_parallelism
    key_groups = manifest.key_groups if stays else None
    savepoint.prove(key_groups)
    for state in savepoint.states():
        for piece in savepoint.pieces(state.name, key_groups):
            rows = piece if stays else _rows_of_shard(piece, contents, manifest)
            states.load(backend, state.name, rows.append_column("deleted", pa.repeat(pa.scalar(False), rows.num_rows)))
    return states.descriptors


def _rows_of_shard(table: pa.Table, contents: SavepointManifest, manifest: Manifest) -> pa.Table:
    """Return the shard's rows, in its own key groups, from rows in the savepoint's key groups."""
    divisor = math.gcd(contents.max_parallelism, manifest.max_parallelism)
    wanted = {group % divisor for group in manifest.key_groups}
    groups = table[_GROUP].to_numpy()
    table = table.filter(pa.array(np.isin(groups % divisor, list(wanted))))
    regrouped = _key_groups(table, contents.key_schema, manifest.max_parallelism)
    table = table.set_column(table.column_names.index(_GROUP), _GROUP, regrouped)
    return of_key_groups(table, manifest.key_groups)


def _key_groups(table: pa.Table, key_schema: bytes, max_parallelism: int) -> pa.Array:
    schema = pa.ipc.read_schema(pa.py_buffer(key_schema))
    kinds = [field.type for field in schema]
    keys = RowCodec(schema, "key").rows([table[f"key.{name}"] for name in schema.names])
    return pa.array([key_group_of(key, kinds, max_parallelism) for key in keys], type=pa.int32())
