"""The key-value store interface and its implementations.

`LmdbStore` imports lmdb when it is first used, so that this package stays light.
"""

from millpond.kv.lmdb import LmdbStore
from millpond.kv.memory import MemoryStore
from millpond.kv.store import MAX_KEY_BYTES, Get, KVStore, Put, TimedValue, WalkableStore

__all__ = ["MAX_KEY_BYTES", "Get", "KVStore", "LmdbStore", "MemoryStore", "Put", "TimedValue", "WalkableStore"]
