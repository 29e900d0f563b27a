"""What stands before a source: partial caches and whole tables."""
