"""The columns of the page's tables, by the rows of tables.csv: a figure in a form, or words from a template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sizing.formats.sentences import rows, sentence, written
from sizing.formats.view import Quantity, in_words
from sizing.formats.words import milliseconds, number
from sizing.report.compare import CompareCandidate, shape
from sizing.report.parts.figures import a_month
from sizing.report.parts.limits import limit_words

WORDS = "words"  # the form of text
FORMS: dict[str, Callable[[Any], str]] = {"number": number, "+%": lambda share: f"{share * 100:+.0f} %"}


def columns(table: str) -> tuple[Quantity, ...]:
    """The columns of a table."""
    found = rows(Path(__file__).with_name("tables.csv")).items()
    return tuple(_column(row) for key, row in found if key.startswith(f"{table} "))


def _column(row: Mapping[str, str]) -> Quantity:
    field, heading, form, of = row["field"], row["heading"], row["form"], COMPUTED.get(row["key"])
    if form.startswith(("{", "[")):
        return in_words(field, heading, partial(sentence, form))
    if form == WORDS:
        return in_words(field, heading, of)
    return Quantity(field, heading, FORMS.get(form) or partial(written, form=form), of)


def _limit(c: CompareCandidate) -> str:
    if c.reason is not None:
        return c.reason
    return limit_words(c.limit, single=not c.itl_ms) + (" limit" if f"{c.limit}_ms" in c.limited else "")


COMPUTED: dict[str, Callable[[Any], Any]] = {  # what no field of a record holds, by the key of its row
    "candidates usd_per_month": lambda one: a_month(one.usd_per_hour),
    "candidates layout": shape,
    "candidates limit": _limit,
    "changes value": lambda one: milliseconds(one.value) if one.unit == "ms" else f"{number(one.value)} {one.unit}",
    "alternatives usd_per_month": lambda one: a_month(one.usd_per_hour),
}
