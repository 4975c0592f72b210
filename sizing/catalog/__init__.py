"""The catalogue: names and paths become specs. Its modules are the only readers of files."""
