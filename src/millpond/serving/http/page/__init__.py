"""What the service adds to the web page."""
