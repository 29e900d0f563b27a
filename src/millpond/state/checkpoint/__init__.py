"""Deltas, bases and head: how a shard's state is made durable and brought back."""

from millpond.state.checkpoint.checkpointer import Checkpointer, CheckpointStats, PendingCheckpoint
from millpond.state.checkpoint.format.manifest import Head, SegmentRef, birth
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
    "Head",
    "PendingCheckpoint",
    "Restored",
    "Savepoint",
    "SegmentRef",
    "Shard",
    "ShardState",
    "birth",
    "restore",
    "write_savepoint",
]
