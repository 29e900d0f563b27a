"""Lookup joins and full tables on Spark."""
