"""The catalogue: turns names and paths into specs. Only its modules read files."""
