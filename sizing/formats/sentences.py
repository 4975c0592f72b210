"""Sentences from templates, which are rows of data files: figures by name and form, and parts that only some figures need.

`{rate:.3g}` writes a value in a form, `{gpus:*GPU}` a count with its noun; `[; {why}]` is left out where its value is None or
empty, `[{simulated?}...]` where it is not true, `[{simulated!}...]` where it is true. A separator at the start of a sentence is
left out. A zero is said. (jinja2 would take 100 ms to load and 4 ms for each template.)
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sizing.formats.view import value_of
from sizing.formats.words import (
    duration,
    gib,
    milliseconds,
    money,
    number,
    number_down,
    of_limit,
    percent,
    rounded_usd,
    stated,
)

# A figure: the path of its value, a test (`?` that it is true, `!` that it is not), its form.
FIGURE = re.compile(r"\{([\w.]+)([?!]?)(?::([^{}]*))?\}")
PART = re.compile(r"\[([^][]*)\]")
FORMS: dict[str, Callable[[Any], str]] = {
    "": lambda value: number(value) if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value),
    "ms": milliseconds,
    "$": money,
    "$3": rounded_usd,
    "%": percent,
    "gib": gib,
    "4": lambda value: number(value, 4),
    "raw": str,
    "stated": stated,
    "down": number_down,
    "share": of_limit,
    "time": duration,
    "capitals": lambda value: str(value).upper(),
}
NOUN = "*"  # between a form and the noun that it counts
UNSAID = (None, "", ())


def paths(template: str) -> set[str]:
    """The paths of all figures that a template writes or tests."""
    return {path for path, *_ in FIGURE.findall(template)}


def sentence(template: str, *sources: object, **own: object) -> str:
    """Fill a template; a value comes from `own`, else from the first of `sources` that has it.

    Raises AttributeError where none has it, also for a part that is left out: a wrong name is found when its row is first used.
    """
    values = {path: value_at(path, own, *sources) for path in paths(template)}

    def is_said(path: str, test: str, _: str) -> bool:
        return bool(values[path]) == (test == "?") if test else values[path] not in UNSAID

    def kept(part: re.Match[str]) -> str:
        return part[1] if all(is_said(*figure) for figure in FIGURE.findall(part[1])) else ""

    before = ""
    while template != before:  # the innermost parts first
        before, template = template, PART.sub(kept, template)
    return FIGURE.sub(lambda of: "" if of[2] else written(values[of[1]], of[3] or ""), template).lstrip(",; ")


def value_at(path: str, *sources: object) -> object:
    """The value at a path such as `memory.weights_gib`; None beyond a None. Raises AttributeError where no source has it."""
    name, *steps = path.split(".")
    found = value_of(name, sources)
    for step in steps:
        found = None if found is None else value_of(step, (found,))
    return found


def written(value: Any, form: str) -> str:
    """A value in a form: a name of `FORMS`, a noun to count, or a format of Python; of several values each, with commas."""
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return ", ".join(written(each, form) for each in value)
    if value is None:
        return number(None)
    form, counts, noun = form.partition(NOUN)
    if counts:
        text = written(value, form)
        return f"{text} {noun}" + "s" * (text != "1")
    return FORMS[form](value) if form in FORMS else format(value, form)


@cache
def rows(file: Path) -> Mapping[str, Mapping[str, str]]:
    """The rows of a data file of templates by their `key`."""
    with file.open(encoding="utf-8", newline="") as lines:
        return {row["key"]: row for row in csv.DictReader(lines)}
