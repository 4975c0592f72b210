"""The texts of `--help`, and shell completion."""
