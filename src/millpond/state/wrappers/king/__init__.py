"""King's caches of values: write-back and two layers (seed 000)."""
