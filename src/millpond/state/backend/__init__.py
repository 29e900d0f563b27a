"""What a state backend is: its protocols, the current key, and what every backend shares."""
