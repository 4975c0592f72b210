"""Records, builders and words that several commands share. Nothing here imports a command."""
