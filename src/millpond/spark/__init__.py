"""Everything that imports pyspark."""
