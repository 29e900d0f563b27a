"""Runs a keyed operator without Spark: for tests, benchmarks and trying things out."""
