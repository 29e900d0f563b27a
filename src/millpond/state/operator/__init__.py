"""What an operator does with its state: states with the current key, timers, folding, one shard of all that."""
