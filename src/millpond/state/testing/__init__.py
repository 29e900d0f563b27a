"""Runs a keyed operator without Spark, for tests, benchmarks and experiments."""
