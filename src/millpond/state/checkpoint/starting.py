"""A new operator that begins with the state of a savepoint, at whatever number of shards and key groups.

A savepoint's rows lie by the key groups of the operator that wrote it. Where the new operator has as
many, a shard takes the rows of its own key groups. Where it has another number, the key groups are found
anew from the keys: a key's group is its hash modulo their number, so a row can be a shard's only if the
two groups are equal modulo the greatest common divisor of both numbers; the rest is passed over unhashed.

Invariant: every file that the shard needs was found whole before a row is loaded.
"""

import math
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.checkpoint.format.manifest import Head
from millpond.state.checkpoint.restoring import StoredStates
from millpond.state.checkpoint.savepoint import Savepoint
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.key_groups import key_group_of
from millpond.state.types.rows import RowCodec

_GROUP = "key_group"


def load_savepoint(
    savepoint: Savepoint,
    head: Head,
    backend: KeyedStateBackend,
    declared: Iterable[StateDescriptor],
    now_ms: int | None,
) -> tuple[StateDescriptor, ...]:
    """Load the rows of a newborn shard's keys into its empty backend; every state there is then.

    An OptionError shows both declarations of a state whose change is refused, a CorruptionError names a file.
    """
    manifest = savepoint.manifest
    states = StoredStates.of(manifest.states, declared, manifest.key_schema, now_ms)
    tables = {state.name: _rows_of_shard(savepoint, state.name, head) for state in savepoint.states()}
    for name, table in tables.items():
        states.load(backend, name, table.append_column("deleted", pa.repeat(pa.scalar(False), table.num_rows)))
    return states.descriptors


def _rows_of_shard(savepoint: Savepoint, state: str, head: Head) -> pa.Table:
    stored_groups = savepoint.manifest.max_parallelism
    if stored_groups == head.max_parallelism:
        return savepoint.table(state, head.key_groups)
    divisor = math.gcd(stored_groups, head.max_parallelism)
    wanted = {group % divisor for group in head.key_groups}
    table = savepoint.table(state)
    groups = table[_GROUP].to_numpy()
    table = table.filter(pa.array(np.isin(groups % divisor, list(wanted))))
    regrouped = _key_groups(table, savepoint.manifest.key_schema, head.max_parallelism)
    table = table.set_column(table.column_names.index(_GROUP), _GROUP, regrouped)
    first, stop = head.key_groups.start, head.key_groups.stop
    return table.filter(pc.and_(pc.greater_equal(table[_GROUP], first), pc.less(table[_GROUP], stop)))


def _key_groups(table: pa.Table, key_schema: bytes, max_parallelism: int) -> pa.Array:
    schema = pa.ipc.read_schema(pa.py_buffer(key_schema))
    kinds = [field.type for field in schema]
    keys = RowCodec(schema, "key").rows([table[f"key.{name}"] for name in schema.names])
    return pa.array([key_group_of(key, kinds, max_parallelism) for key in keys], type=pa.int32())
