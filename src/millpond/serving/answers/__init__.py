"""From requests to answers: targets, requests of one and of many keys, and answers as values or Arrow tables."""
