"""A bounded map from keys to rows that stay in columns: what a partial cache of batches is made of."""
