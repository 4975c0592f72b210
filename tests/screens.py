"""How long a screen may be, and what a test captures of it."""

from __future__ import annotations

import pytest

MOST_LINES = 24

Capture = pytest.CaptureFixture[str]
