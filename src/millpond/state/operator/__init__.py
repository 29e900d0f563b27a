"""What an operator does with its state: handles of the current key, timers, folding, and one shard of all that."""
