"""Options of keyed state: which backend, which cache, and how they are chosen by name."""
