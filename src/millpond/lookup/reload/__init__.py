"""Reloading of fully cached tables: the scans that read them, and the triggers that decide when."""
