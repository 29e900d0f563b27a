"""Deltas, bases and head: how a shard's state is made durable and brought back."""

from millpond.state.checkpoint.head import Head, SegmentRef, birth
from millpond.state.checkpoint.shard import Commit, Shard

__all__ = ["Commit", "Head", "SegmentRef", "Shard", "birth"]
