"""Definitions, windows, operations (IRs), tiles, compiled plans. Pure functions: no IO, no Spark."""
