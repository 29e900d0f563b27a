"""Read the state of a query from its checkpoint, make savepoints of it, and show the page beside a driver."""
