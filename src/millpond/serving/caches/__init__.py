"""What the caches of a fetcher hold: batch rows and merged tiles of keys, their sizes, and which keys are admitted."""
