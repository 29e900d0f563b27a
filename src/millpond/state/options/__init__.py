"""Options of keyed state: the backend and the cache, chosen by name."""
