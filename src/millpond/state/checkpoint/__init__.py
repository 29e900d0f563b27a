"""Makes a shard's state durable and restores it: deltas, bases and manifests."""

from millpond.state.checkpoint.checkpointer import Checkpointer, CheckpointStats
from millpond.state.checkpoint.format.manifest import Manifest, SegmentRef, new_manifest
from millpond.state.checkpoint.pending import PendingCheckpoint
from millpond.state.checkpoint.restoring import Restored, restore
from millpond.state.checkpoint.savepoint import Savepoint, ShardState, write_savepoint
from millpond.state.checkpoint.shard import Shard
from millpond.state.checkpoint.storage.files import FileStorage
from millpond.state.checkpoint.storage.interface import CheckpointStorage, Commit

__all__ = [
    "CheckpointStats",
    "CheckpointStorage",
    "Checkpointer",
    "Commit",
    "FileStorage",
    "Manifest",
    "PendingCheckpoint",
    "Restored",
    "Savepoint",
    "SegmentRef",
    "Shard",
    "ShardState",
    "new_manifest",
    "restore",
    "write_savepoint",
]
