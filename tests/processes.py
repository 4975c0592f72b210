"""What a process said on stderr, without the progress lines that a command adds on a busy machine."""

from __future__ import annotations

import re

PROGRESS = re.compile(r"^llmsize: .* \(\d+ s\) \.\.\.\n", re.MULTILINE)


def said(stderr: bytes | str) -> str:
    """The text of stderr without its progress lines."""
    return PROGRESS.sub("", stderr if isinstance(stderr, str) else stderr.decode())
