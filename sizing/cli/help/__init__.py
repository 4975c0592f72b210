"""What `--help` shows, and what a shell completes."""
