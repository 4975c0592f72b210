"""Ratchets: what the package has reached in size and shape may not be lost again.

Each limit in `ratchets.json` is what was reached when it was last lowered: a number may only fall, and what exceeds a
rule is listed by name until it keeps it. `python tests/test_ratchets.py` prints all of them with today's numbers and
lowers the limits; a new capability that needs more raises one by hand, in the commit that says why.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import measures
import pytest
from places import ROOT

LIMITS = ROOT / "tests" / "ratchets.json"
MOST_FILES, MOST_AT_TOP = 25, 2  # in a room; `cli` and `report` have one a command besides
BY_COMMAND = ("cli", "report")
MOST_LINES_OF_FILE, MOST_LINES_OF_FUNCTION, MOST_PARAMETERS = 500, 60, 6
ADVICE = "python tests/test_ratchets.py lowers the limits to what is reached"


def over(found: dict[str, int], most: int) -> dict[str, int]:
    """What exceeds a rule, with its number."""
    return {name: number for name, number in sorted(found.items()) if number > most}


@cache
def today() -> dict[str, Any]:
    """What the package measures: numbers, and by name what exceeds a rule."""
    code, _ = measures.package_lines()
    untyped, rooms = sorted(measures.any_and_string_keys().items()), measures.files_by_room()
    return {
        "code lines": code,
        "# fmt: skip": measures.unformatted(),
        "uses of Any": {room: anys for room, (anys, _) in untyped if anys},
        "reads by a string key": {room: keys for room, (_, keys) in untyped if keys},
        "parameters of mappings": dict(sorted(measures.parameters_of_mappings().items())),
        "files of a room": {
            **over({room: count for room, count in rooms.items() if room not in (*BY_COMMAND, ".")}, MOST_FILES),
            **over({"at the top": rooms["."]}, MOST_AT_TOP),
            **{room: rooms[room] for room in BY_COMMAND},
        },
        "lines of a file": over(measures.lines_by_file(), MOST_LINES_OF_FILE),
        "lines of a test file": over(measures.lines_by_test_file(), MOST_LINES_OF_FILE),
        "lines of a function": over(measures.lines_by_function(), MOST_LINES_OF_FUNCTION),
        "parameters of a function": over(measures.parameters_by_function(), MOST_PARAMETERS),
        "classes of one name": {name: len(paths) for name, paths in sorted(measures.classes_of_one_name().items())},
    }


def exceeded(now: Any, limit: Any) -> list[str]:
    """What is above its limit, by name; `limit` is a number or one a name."""
    if not isinstance(now, dict):
        return [f"{now:,}, limit {limit:,}"] if now > limit else []
    return [
        f"{name}: {number:,}" + (f", limit {limit[name]:,}" if name in limit else ", not listed")
        for name, number in now.items()
        if number > limit.get(name, -1)
    ]


def kept(now: Any, limit: Any) -> list[str]:
    """Names that are listed although they keep the rule now."""
    return [name for name in limit if name not in now] if isinstance(limit, dict) else []


REACHED: dict[str, Any] = json.loads(LIMITS.read_text(encoding="utf-8")) if LIMITS.exists() else {}


@pytest.mark.parametrize("measure", REACHED)
def test_no_limit_is_exceeded(measure: str) -> None:
    assert exceeded(today()[measure], REACHED[measure]) == []


@pytest.mark.parametrize("measure", REACHED)
def test_what_keeps_a_rule_leaves_the_list(measure: str) -> None:
    assert kept(today()[measure], REACHED[measure]) == [], ADVICE


def test_every_limit_is_of_a_measure() -> None:
    assert list(REACHED) == list(today())


@pytest.mark.parametrize(
    ("now", "limit", "wrong"),
    [
        (9, 9, []),
        (10, 9, ["10, limit 9"]),
        ({"a": 61}, {"a": 62, "b": 70}, []),
        ({"a": 63, "c": 61}, {"a": 62}, ["a: 63, limit 62", "c: 61, not listed"]),
    ],
)
def test_a_ratchet_sees_what_grows(now: Any, limit: Any, wrong: list[str]) -> None:
    assert exceeded(now, limit) == wrong


def lowered(now: Any, limit: Any) -> Any:
    """Limits as low as what is reached, none of them raised."""
    if not isinstance(now, dict):
        return min(now, limit)
    return {name: min(limit[name], now[name]) for name in limit if name in now}


def main(limits: Path = LIMITS) -> None:
    """Print what is measured beside its limit, and lower the limits; those that do not exist yet are today's."""
    _, raw = measures.package_lines()
    print(f"raw lines: {raw:,} (no limit)")
    anys, keys = (sum(today()[name].values()) for name in ("uses of Any", "reads by a string key"))
    print(f"of 1,000 raw lines: {1000 * anys / raw:.1f} uses of Any, {1000 * keys / raw:.1f} reads by a string key")
    for measure, now in today().items():
        limit = REACHED.get(measure, now)
        if not isinstance(now, dict):
            print(f"{measure}: {now:,} (limit {limit:,})")
            continue
        print(f"{measure}: {len(now)}")
        for name, number in now.items():
            print(f"    {name}: {number:,}" + (f" (limit {limit[name]:,})" if name in limit else " (not listed)"))
    new = {measure: lowered(now, REACHED.get(measure, now)) for measure, now in today().items()}
    limits.write_text(json.dumps(new, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
