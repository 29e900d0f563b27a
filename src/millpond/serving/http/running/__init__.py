"""Serving processes and their connections."""
