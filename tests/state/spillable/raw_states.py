"""States of every kind on a spillable heap, what they hold, and what of their checkpoints are bytes."""

import pyarrow as pa

from millpond.state.checkpoint import Checkpointer, new_manifest
from millpond.state.spi import StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer

GROUPS = range(4)
KEY = pa.schema([("user", pa.string())])
STATES = [
    StateDescriptor("count", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int)),
    StateDescriptor("log", StateKind.LIST, pa.schema([("at", pa.int64()), ("words", pa.list_(pa.string()))])),
    StateDescriptor("pages", StateKind.MAP, pa.schema([("n", pa.int64())]), pa.schema([("page", pa.string())])),
]
LONG = "long" * 200


def use(backend, key_group, name, number):
    """Give one key a value of every kind."""
    count, log, pages = backend.value_state(STATES[0]), backend.list_state(STATES[1]), backend.map_state(STATES[2])
    backend.enter(key_group)
    backend.context.key = (name,)
    count.update(number)
    log.append((number, [name]))
    pages.put((f"page{number % 3}",), (number,))
    pages.put((name,), (number,))


def everything(source):
    return {
        (state.name, key_group): sorted(
            map(repr, zip(cells.keys, cells.map_keys or cells.keys, cells.values, strict=True))
        )
        for state in STATES
        for key_group in GROUPS
        for cells in (source.cells(state.name, key_group),)
    }


def checkpointer(storage, backend):
    return Checkpointer(storage, backend, new_manifest("lineage", 0, 1, 4, KEY), STATES)


def raw_segments(storage):
    manifest = storage.manifest()
    return [ref for ref in manifest.segments if storage.segment(ref).startswith(b"MPSR")]
