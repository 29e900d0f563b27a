"""A shard with a state of each kind, the store that it commits to, and a plain dictionary of what it should hold."""

import copy

import pyarrow as pa

from millpond.state.checkpoint import Manifest, Shard, new_manifest
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind

KEY = pa.schema([("user", pa.string())])
NUMBER = pa.schema([("number", pa.int64())])
STATES = {
    "count": StateDescriptor("count", StateKind.VALUE, NUMBER),
    "log": StateDescriptor("log", StateKind.LIST, pa.schema([("words", pa.list_(pa.string()))])),
    "visits": StateDescriptor("visits", StateKind.MAP, NUMBER, pa.schema([("page", pa.string())])),
}


class Store:
    """What Spark's state store is to a shard: a version is there whole, or it is not there."""

    def __init__(self, manifest):
        self.manifest = manifest.encode()
        self.segments = {}

    def put(self, commit):
        assert not commit.segments.keys() & self.segments.keys()
        self.segments |= commit.segments
        for segment_id in commit.dropped:
            del self.segments[segment_id]
        self.manifest = commit.manifest.encode()

    def read_manifest(self):
        return Manifest.decode(self.manifest, "the manifest")

    def restored(self):
        manifest = self.read_manifest()
        shard = Shard(manifest, HeapBackend(manifest.key_groups))
        shard.restore(self.segments)
        return shard


def declared(shard):
    """Handles of every state, as an operator's init makes them."""
    handles = {}
    for name, descriptor in STATES.items():
        shard.declare(descriptor)
        make = {"value": shard.backend.value_state, "list": shard.backend.list_state, "map": shard.backend.map_state}
        handles[name] = make[descriptor.kind](descriptor)
    return handles


def contents(shard):
    """Every cell of a shard: by state, key group, key and map key."""
    found = {}
    for name in STATES:
        for group in shard.manifest.key_groups:
            cells = shard.backend.cells(name, group)
            map_keys = cells.map_keys or [None] * len(cells)
            for key, map_key, value in zip(cells.keys, map_keys, cells.values, strict=True):
                assert (name, group, key, map_key) not in found
                found[name, group, key, map_key] = value
    return found


def applied(shard, oracle, changes):
    """Run a version's changes through the handles, and through the oracle in the plainest way."""
    handles, oracle = declared(shard), copy.deepcopy(oracle)
    for group, key, what, number in changes:
        shard.backend.enter(group)
        shard.backend.context.key = key
        page = (f"page {number % 3}",)
        if what == "update":
            handles["count"].update((number,))
            oracle["count", group, key, None] = (number,)
        elif what == "append":
            handles["log"].append(([str(number)],))
            oracle["log", group, key, None] = [*oracle.get(("log", group, key, None), []), ([str(number)],)]
        elif what == "put":
            handles["visits"].put(page, (number,))
            oracle["visits", group, key, page] = (number,)
        elif what == "remove":
            handles["visits"].remove(page)
            oracle.pop(("visits", group, key, page), None)
        else:
            for handle in handles.values():
                handle.clear()
            oracle = {at: value for at, value in oracle.items() if at[1:3] != (group, key)}
    return oracle


GROUPS = new_manifest("lineage", 1, 3, 20, KEY).key_groups
