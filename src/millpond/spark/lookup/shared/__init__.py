"""One partial cache of a lookup table, shared by all executors of an application.

Each key has an owner among the executors (`ownership`). The owner loads and caches the key, and answers the others
(`owner`). They find each other through a directory on the driver (`directory`, `members`). `rows` puts this together.
"""
