"""State on its way from PySpark's own operators to Millpond's, and back."""
