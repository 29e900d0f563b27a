"""What checkpoints are made of: manifests and segments."""
