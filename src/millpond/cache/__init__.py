"""The only bounded map of the house."""
