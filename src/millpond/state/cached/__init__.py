"""Caches in front of a backend, or of one of its states."""
