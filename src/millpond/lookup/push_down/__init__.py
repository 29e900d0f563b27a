"""Fewer columns and fewer rows: what a source leaves out, and what is left out here."""
