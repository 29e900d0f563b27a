"""The stream of tiles: combined before the shuffle, kept in keyed state, written to the KV store."""
