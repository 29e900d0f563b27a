"""An LRU cache of objects over any state backend, as in FLIP-325."""
