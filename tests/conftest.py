"""Property tests draw the same examples on every run, few enough for one core."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ["SOURCE_DATE_EPOCH"] = "1795867200"  # 2026-11-28, by which the age of prices is told

settings.register_profile("ci", derandomize=True, max_examples=40, deadline=None, database=None)
settings.load_profile("ci")
