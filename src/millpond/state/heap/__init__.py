"""The heap backend: state as Python objects, in tables with undo maps."""
