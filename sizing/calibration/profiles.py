"""Rewrites profiles as text: new numbers in setting rows of an engine. Everything else stays unchanged, including comments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

ITEM = "    - {"
SIGNIFICANT, NOTHING = 3, 1e-3  # digits kept; the solver's residue of a zero, in any unit used here


class NewRow(NamedTuple):
    """The changes of one setting row: fields of its value, and its sources."""

    value: dict[str, float]
    points: int
    spread: float
    source: str
    note: str


def engine_rewritten(text: str, setting: str, rows: Mapping[int, NewRow]) -> str:
    """The text of a profile with setting rows replaced, by row number. Raises ValueError for a missing row."""
    found = re.search(rf"^  {setting}:[^\n]*\n((?:    .*\n|\n)+)", f"{text}\n", re.MULTILINE)
    if found is None:
        raise ValueError(f"no setting {setting}")
    starts = [match.start() for match in re.finditer(rf"^{re.escape(ITEM)}", found[1], re.MULTILINE)]
    if max(rows) >= len(starts):
        raise ValueError(f"{setting} has {len(starts)} rows")
    pieces = [found[1][: starts[0]]]
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
        piece = found[1][start:end]
        tail = piece[len(piece.rstrip()) :]
        pieces.append(_row(piece, rows[number]) + tail if number in rows else piece)
    return f"{text[: found.start(1)]}{''.join(pieces)}{text[found.end(1) :]}".rstrip("\n") + "\n"


def _row(piece: str, new: NewRow) -> str:
    stated = yaml.safe_load(piece)[0]
    value = {**stated["value"], **{name: _rounded(number) for name, number in new.value.items()}}
    value |= {"points": new.points, "spread": _rounded(new.spread)}
    head = {name: stated[name] for name in ("since", "until", "when") if name in stated}
    first = _flow({**head, "value": value, "evidence": "measured"})
    return f"    - {first[:-1]},\n       source: {json.dumps(new.source)},\n       note: {json.dumps(new.note)}}}"


def _rounded(value: float) -> float:
    rounded = float(f"{value:.{SIGNIFICANT}g}") if value > NOTHING else 0.0
    return int(rounded) if rounded == int(rounded) else rounded


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if re.fullmatch(r"[a-z_]+", value) else json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
