"""Where checkpoints are kept: the interface, and its form in files."""
