"""An LRU cache of objects over any state backend (seed 002, FLIP-325)."""
