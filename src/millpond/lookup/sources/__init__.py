"""The sources of lookup tables, one per module. Each is a `LookupFunction`, a `LookupScan`, or both."""
