"""The key-value store interface and its implementations."""
