"""The bodies of requests and responses, in JSON and Arrow."""
