"""What is counted, and where the counts go."""
