"""A value that no segment could hold is refused while nothing of its version is written."""

import pyarrow as pa
import pytest

from millpond.errors import DataError
from millpond.state.checkpoint import Shard, new_manifest
from millpond.state.checkpoint.format import segment as segment_module
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind

USER = pa.schema([("user", pa.string())])
TEXT = pa.schema([("text", pa.string())])
STATES = {
    StateKind.VALUE: StateDescriptor("note", StateKind.VALUE, TEXT),
    StateKind.LIST: StateDescriptor("note", StateKind.LIST, TEXT),
    StateKind.MAP: StateDescriptor("note", StateKind.MAP, TEXT, pa.schema([("page", pa.string())])),
}
LIMIT = 10_000


def write(shard, state, key, text):
    shard.backend.enter(0)
    shard.backend.context.key = (key,)
    if state.kind is StateKind.VALUE:
        shard.backend.value_state(state).update((text,))
    elif state.kind is StateKind.LIST:
        shard.backend.list_state(state).put([(text,)])
    else:
        shard.backend.map_state(state).put(("home",), (text,))


@pytest.mark.parametrize("kind", STATES)
def test_a_value_too_large(kind, monkeypatch):
    monkeypatch.setattr(segment_module, "MAX_CELL_BYTES", LIMIT)
    state, manifest = STATES[kind], new_manifest("lineage", 0, 1, 4, USER)
    shard = Shard(manifest, HeapBackend(manifest.key_groups))
    shard.declare(state)
    assert shard.begin_at(manifest)
    for number in range(20):
        write(shard, state, f"user-{number}", "x" * 1000)
    # Together they are more than one value may be.
    first = shard.commit("first")
    assert shard.begin_at(first.manifest)
    write(shard, state, "ann", "x" * LIMIT)
    entry = ", map key ('home',)" if kind is StateKind.MAP else ""
    with pytest.raises(DataError) as told:
        shard.commit("second")
    assert str(told.value).startswith(f"state 'note' of key ('ann',){entry}: the value has 100")
    assert f"{LIMIT} at most" in str(told.value)
    assert shard.manifest == first.manifest
    # The batch runs again, and the state is as it was.
    assert shard.begin_at(first.manifest)
    assert sum(len(shard.backend.cells("note", group)) for group in range(4)) == 20
    write(shard, state, "ann", "x")
    assert shard.commit("third").manifest.version == 2
