"""Rewrites profiles as text: new numbers in efficiency rows of a GPU or in setting rows of an engine.

Everything else stays unchanged, including comments and column alignment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

Value = float | str | tuple[float, ...]

_VALUE = r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^,}\s]+'
_ROW = re.compile(r'- (\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})')
BEFORE = "source"  # fields that a row lacks are inserted before this one


def gpu_rewritten(text: str, rows: Mapping[int, Mapping[str, Value]]) -> str:
    """The text of a profile with fields of efficiency rows replaced. The keys of `rows` are row numbers.

    Raises ValueError for a missing row.
    """
    begin = re.search(r"^efficiency:", text, re.MULTILINE)
    if begin is None:
        raise ValueError("no efficiency")
    end = re.search(r"^\w", text[begin.end() :], re.MULTILINE)
    stop = begin.end() + end.start() if end else len(text)
    found = [match for match in _ROW.finditer(text, begin.end(), stop) if not _in_comment(text, match.start())]
    if rows and max(rows) >= len(found):
        raise ValueError(f"efficiency has {len(found)} rows")
    for number in sorted(rows, reverse=True):
        row = found[number]
        text = f"{text[: row.start(1)]}{_efficiency_row(row[1], rows[number])}{text[row.end(1) :]}"
    return text


def _in_comment(text: str, place: int) -> bool:
    return text[text.rfind("\n", 0, place) + 1 : place].lstrip().startswith("#")


def _efficiency_row(row: str, fields: Mapping[str, Value]) -> str:
    for name, value in fields.items():
        field = re.compile(rf"(?P<head>[{{,]\s*{name}:\s*)(?P<value>{_VALUE})(?P<after>,?[ ]*)")
        found = field.search(_without_texts(row))
        if found is None:
            place = re.search(rf"\b{BEFORE}:", _without_texts(row))
            if place is None:
                raise ValueError(f"a row without {name} and {BEFORE}")
            row = f"{row[: place.start()]}{name}: {written(value)}, {row[place.start() :]}"
            continue
        row = f"{row[: found.start('value')]}{_as_wide(written(value), found)}{row[found.end() :]}"
    return row


def _without_texts(row: str) -> str:
    """A row with quoted text replaced by blanks of the same length, so that no field is found in it."""
    return re.sub(r'"(?:[^"\\]|\\.)*"', lambda text: '"' + "_" * (len(text[0]) - 2) + '"', row)


def _as_wide(value: str, found: re.Match[str]) -> str:
    """A value padded to the previous width, so that the next column keeps its place if possible."""
    comma, blank = found["after"].rstrip(), found["after"][len(found["after"].rstrip()) :]
    if not blank:
        return f"{value}{comma}"
    width = len(found["value"]) + len(found["after"])
    return f"{value}{comma}".ljust(width) if len(value) + len(comma) < width else f"{value}{comma} "


def written(value: Value) -> str:
    """Format a value as in profiles: numbers without superfluous digits, texts in quotes, curves in brackets."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return str(int(value)) if value == int(value) else repr(float(value))


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
