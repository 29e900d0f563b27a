"""What the KV store holds of features, as bytes: keys, rows, values and serving info."""
