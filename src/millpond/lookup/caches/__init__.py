"""The caches in front of a source: partial caches, and full tables."""
