"""How rows cross Spark's shuffle: packed by shard, sent to a chosen partition, spooled."""
