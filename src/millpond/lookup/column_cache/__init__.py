"""A bounded map from keys to rows in columns, which the partial cache for batches uses."""
