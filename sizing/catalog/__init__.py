"""The catalogue: names and paths become specs. Only its modules read files."""
