"""JSON: one object, fixed keys, no NaN or Infinity, byte-identical for the same question."""

from __future__ import annotations

import json
from typing import Any

from sizing.report.documents import plain


def render(document: Any) -> str:
    """Return a document as indented JSON, in ASCII so that it is the same under every encoding."""
    return json.dumps(plain(document), indent=2, ensure_ascii=True, allow_nan=False)


def line(document: Any) -> str:
    """Return a document as JSON on one line."""
    return json.dumps(plain(document), ensure_ascii=True, allow_nan=False)
