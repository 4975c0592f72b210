"""GPU profiles rewritten: new numbers in rows of efficiency, all else, comments and columns too, as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

Value = float | str | tuple[float, ...]

_VALUE = r'"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^,}\s]+'
_ROW = re.compile(r'- (\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})')
BEFORE = "source"  # what a row lacks is put before this


def rewritten(text: str, rows: Mapping[int, Mapping[str, Value]]) -> str:
    """Return a profile's text with fields of rows of efficiency, by number, replaced.

    Raises ValueError where there is no such row.
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
        text = f"{text[: row.start(1)]}{_row(row[1], rows[number])}{text[row.end(1) :]}"
    return text


def _in_comment(text: str, place: int) -> bool:
    return text[text.rfind("\n", 0, place) + 1 : place].lstrip().startswith("#")


def _row(row: str, fields: Mapping[str, Value]) -> str:
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
    """Return a row with what stands in quotes blanked out, character for character, so that no field is found there."""
    return re.sub(r'"(?:[^"\\]|\\.)*"', lambda text: '"' + "_" * (len(text[0]) - 2) + '"', row)


def _as_wide(value: str, found: re.Match[str]) -> str:
    """Return a value with what follows it as wide as before, so that the next column stays where it was if it can."""
    comma, blank = found["after"].rstrip(), found["after"][len(found["after"].rstrip()) :]
    if not blank:
        return f"{value}{comma}"
    width = len(found["value"]) + len(found["after"])
    return f"{value}{comma}".ljust(width) if len(value) + len(comma) < width else f"{value}{comma} "


def written(value: Value) -> str:
    """Return a value as profiles write it: numbers without superfluous digits, texts in quotes, curves in brackets."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return str(int(value)) if value == int(value) else repr(float(value))
