"""The key-value store interface and its implementations.

`LmdbStore` imports lmdb and `RedisStore` imports redis when they are first used, so that this package
stays light.
"""

from millpond.kv.async_store import async_store
from millpond.kv.lmdb import LmdbStore
from millpond.kv.memory import MemoryStore
from millpond.kv.store import MAX_KEY_BYTES, AsyncKVStore, Get, KVStore, Put, TimedValue, WalkableStore

__all__ = [
    "MAX_KEY_BYTES",
    "AsyncKVStore",
    "Get",
    "KVStore",
    "LmdbStore",
    "MemoryStore",
    "Put",
    "TimedValue",
    "WalkableStore",
    "async_store",
]
