"""Collecting whole Arrow tables of events by array operations."""
