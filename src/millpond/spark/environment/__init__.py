"""What surrounds a job: Spark's session and version, Java, and the Python workers' environment."""
