"""The key-value store in Redis, Valkey or a Redis Cluster."""
