"""What is put around a backend: caches of its values, and undo."""
