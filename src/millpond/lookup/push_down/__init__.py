"""Push-down: fewer columns and rows, left out by the source if it can, else by Millpond."""
