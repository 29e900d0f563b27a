"""Each GroupBy as a fetcher serves it: its plan, its caches, and the batch that is served."""
