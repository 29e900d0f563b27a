"""The commands of `millpond`, one file each; `millpond.cli` puts them together."""
