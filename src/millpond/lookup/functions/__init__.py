"""What answers a lookup, and the checks around it."""
