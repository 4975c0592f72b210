"""Versions of engines, read into numbers that can be compared."""

from __future__ import annotations

import re
from functools import cache

_VERSION = re.compile(
    r"v?(?P<release>[0-9]+(?:\.[0-9]+)*)"
    r"(?P<pre>(?:a|b|rc)[0-9]+)?"
    r"(?:\.?post(?P<post>[0-9]+))?"
    r"(?:\.dev[0-9]*)?"
    r"(?:\+[a-z0-9.]+)?",
    re.IGNORECASE,
)


@cache
def parse_version(text: str) -> tuple[int, ...]:
    """Read a version into comparable numbers: `0.4.6.post5` is (0, 4, 6, 5), `1.2.0rc5` is (1, 2, 0).

    A pre-release or development build orders as its release, whose code it has. Raises ValueError.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a version, as 0.19, 0.4.6.post5 or 1.2.0rc5")
    release = tuple(int(part) for part in match["release"].split("."))
    return (*release, int(match["post"])) if match["post"] and not match["pre"] else release
