"""Run a processor of PySpark without Spark, in tests."""
