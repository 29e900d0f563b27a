"""What a state holds and what names it: rows, key bytes, codecs, time to live, descriptors."""
