"""What an operator remembers per key. Pure Python, no Spark."""
