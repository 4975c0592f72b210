"""Published deployments against the answers of the command line: `python -m sizing.calibration --published FILE`.

Each row has a command, the published figure, and the place of the matching figure in the command's JSON. The place is a path of
keys; a leading `1/` inverts the value, and a number multiplies it.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from sizing.catalog.files import read_text
from sizing.specs.errors import Fault, InputError

NEEDED = ("id", "class", "command", "figure", "published")
PERCENT = 100
ONE_POOL, SEPARATE_POOLS = "deployment", "disaggregated"  # the places of an estimate's answer


class PublishedFigure(NamedTuple):
    """A published figure with the command that asks for it."""

    id: str
    kind: str
    arguments: tuple[str, ...]
    figure: str
    published: float


class Answered(NamedTuple):
    """A question with its answer; None and the reason if there is no answer."""

    question: PublishedFigure
    found: float | None
    why_not: str | None = None

    @property
    def ratio(self) -> float:
        """The answer over the published figure; 0 without an answer."""
        return (self.found or 0.0) / self.question.published


def questions(path: Path) -> tuple[PublishedFigure, ...]:
    """The questions of a file. Raises InputError for a missing column, and for a figure that is not a number."""
    lines = list(csv.DictReader(read_text(path).splitlines()))
    missing = [name for name in NEEDED if not lines or name not in lines[0]]
    if missing:
        raise InputError([Fault("the column is missing", str(path), 1, name) for name in missing])
    found = []
    for number, line in enumerate(lines, start=2):
        try:
            published = float(line["published"])
        except ValueError:
            what = f"{line['published']!r} is no number"
            raise InputError(what, file=str(path), line=number, field="published") from None
        arguments = tuple(shlex.split(line["command"])[1:])  # without the program's name
        found.append(PublishedFigure(line["id"], line["class"], arguments, line["figure"], published))
    return tuple(found)


def answered(figures: Iterable[PublishedFigure]) -> Iterator[Answered]:
    """Ask each question on the command line, one after another."""
    for question in figures:
        command = (sys.executable, "-m", "sizing", *question.arguments, "--json")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            yield Answered(question, figure_of(json.loads(done.stdout), question.figure))
        except (ValueError, LookupError, TypeError, ZeroDivisionError):
            yield Answered(question, None, (done.stderr.strip() or "no such figure").splitlines()[-1])


def figure_of(document: object, figure: str) -> float:
    """The number in a document that `figure` names: `1/total_s*1024` is 1,024 over `total_s`.

    A figure of the deployment is read from the separate pools where these are the answer. Raises LookupError for a path without a
    value, TypeError for a value that is not a number.
    """
    path, _, factor = figure.partition("*")
    keys, value = path.removeprefix("1/").split("."), document
    if keys[0] == ONE_POOL and isinstance(document, dict) and document.get("serves") == SEPARATE_POOLS:
        keys[0] = SEPARATE_POOLS
    for key in keys:
        value = value[int(key)] if isinstance(value, list) else value[key]  # type: ignore[index]
    number = float(value)  # type: ignore[arg-type]
    return (1 / number if path.startswith("1/") else number) * float(factor or 1)


def tables(answered: Iterable[Answered]) -> tuple[Table, Table]:
    """Two tables: every answer with its ratio, and by class the median error and the most extreme ratio."""
    every = Table("id", "published", "answered", "ratio", title="published deployments")
    classes = Table("class", "figures", "unanswered", "median error, %", "farthest ratio", title="by class")
    by_class: dict[str, list[Answered]] = defaultdict(list)
    for one in answered:
        by_class[one.question.kind].append(one)
        shown = f"{one.found:.4g}" if one.found is not None else one.why_not or ""
        every.add_row(one.question.id, f"{one.question.published:g}", shown, f"{one.ratio:.2f}")
    for kind, ones in by_class.items():
        ratios = [one.ratio for one in ones if one.found]
        far = max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=0.0)
        median = np.median([PERCENT * abs(one.ratio - 1) for one in ones])
        classes.add_row(kind, str(len(ones)), str(len(ones) - len(ratios)), f"{median:.0f}", f"{far:.2f}")
    return every, classes
