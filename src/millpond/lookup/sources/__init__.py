"""What can be looked up in: one module a source. Each is a `LookupFunction`, a `LookupScan`, or both."""
