"""A published config.json, read by field into a model."""
