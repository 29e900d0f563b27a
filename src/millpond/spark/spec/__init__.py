"""A keyed operator as data: its specification, its metrics, and a task's lease on a shard."""
