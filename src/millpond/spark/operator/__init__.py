"""The keyed operator: planned on the driver, run in a worker."""
