"""Features on Spark: reading sources, the batch upload, the stream of tiles, training sets and their check."""
