"""Rows on their way through Spark's shuffle: packed by shard, sent to a chosen partition, and spooled."""
