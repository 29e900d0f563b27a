"""Wrappers around a backend: caches of its values, and undo of one key's call."""
