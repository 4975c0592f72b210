"""The groups of commands in `llmsize --help`, and two or three examples of each command."""

from __future__ import annotations

import re
from pathlib import Path

GROUPS = {
    "Size a service": ("init", "estimate", "compare", "curve", "sweep", "simulate"),
    "Understand an answer": ("explain", "memory", "step", "roofline", "whatif", "import", "validate", "calibrate"),
    "Plan and pay": ("plan", "cost", "report"),
    "Deploy and check": ("deploy", "check"),
    "What is known": ("gpus", "models", "engines", "workloads", "prices", "schema", "config", "mcp", "completion"),
}


def _examples() -> dict[str, tuple[str, ...]]:
    """The examples of each command in examples.txt. A line that ends with a backslash goes on in the next."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    _, *parts = re.split(r"^\[(.+)\]\n", text, flags=re.MULTILINE)
    listed = (tuple(re.findall(r"(?:.*\\\n)*.+", lines)) for lines in parts[1::2])
    return dict(zip(parts[::2], listed, strict=True))


EXAMPLES = _examples()
