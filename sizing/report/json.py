"""JSON: one object, fixed keys, no NaN or Infinity, byte-identical for the same question."""

from __future__ import annotations

import json
from typing import Any

from sizing.report.documents import plain


def render(document: Any) -> str:
    """Return a document as indented JSON."""
    return json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)
