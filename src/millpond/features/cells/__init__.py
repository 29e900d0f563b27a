"""The cells of intermediate results, one file per family.

`cell` defines cells and operations; ``operations`` has the table of all operations.
"""
