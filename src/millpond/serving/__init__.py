"""Fetcher, IR caches, serving info, HTTP app."""
