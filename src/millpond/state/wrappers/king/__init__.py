"""King's caches of values, from flink-state-cache: write-back and two layers."""
