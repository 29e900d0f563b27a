"""The environment of a job: Spark's session and version, Java, and what user code finds in a Python worker."""
