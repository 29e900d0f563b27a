"""When a fully cached table is read again, and from what."""
