"""A shard in a state host: restored, run for a batch, committed, given to one attempt at a time."""
