"""Reads the state of a query from its checkpoint, and makes savepoints of it."""
