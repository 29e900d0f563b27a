"""One file a claim: each prints a table, draws a picture and ends with one line of JSON.

Run one as `.venv/bin/python -m benchmarks.NAME`, all of them as `make bench`. What they share is in
`benchmarks.report`. Pictures and JSON land in `benchmarks/results/`, and whatever figure the README
or the docs quote is copied from there, never typed from memory.
"""
