"""Reads a published config.json, field by field, into a model."""
