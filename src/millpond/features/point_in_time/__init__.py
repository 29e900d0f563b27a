"""Features as of many past times: the algorithm of the training set, without Spark."""
