"""The types of state: rows, key bytes, codecs, time to live, descriptors."""
