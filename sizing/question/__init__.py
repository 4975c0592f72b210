"""The resolved question: options, names, values and demand, with defaults filled in."""
