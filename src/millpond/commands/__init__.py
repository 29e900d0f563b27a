"""The commands of `millpond`, one file each; `millpond.cli` combines them."""
