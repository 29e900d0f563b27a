"""Lookup functions, partial and full caching, reload triggers, connectors."""
