"""The heap backend: state as Python objects, in copy-on-write tables."""
