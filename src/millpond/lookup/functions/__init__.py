"""Lookup functions, and the checks of their keys and answers."""
