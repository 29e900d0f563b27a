"""Move state from PySpark's own operators to Millpond's, and back."""
