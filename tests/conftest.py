"""Property tests draw the same examples on every run, few enough for one core."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ci", derandomize=True, max_examples=40, deadline=None, database=None)
settings.load_profile("ci")
