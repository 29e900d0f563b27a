"""The key-value store in LMDB."""
