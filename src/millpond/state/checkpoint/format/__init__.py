"""The formats of a checkpoint: manifests and segments."""
