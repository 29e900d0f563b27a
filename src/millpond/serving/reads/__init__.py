"""Reading the keys of a GroupBy: from its caches and the store."""
