"""Where checkpoints are kept: the interface, and its implementation in files."""
