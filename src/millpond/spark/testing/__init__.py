"""Runs a processor of PySpark without Spark."""
