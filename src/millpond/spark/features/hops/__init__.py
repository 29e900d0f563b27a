"""The hop table: the history of a GroupBy as hop IRs in Parquet, from which uploads continue."""
