"""What one keyed operator is, as data: its specification, its metrics, and the lease of a task on a shard."""
