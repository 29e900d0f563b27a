"""The cells of intermediate results, one file per family.

`cell` says what a cell and an operation are; ``operations`` has the table of all operations.
"""
