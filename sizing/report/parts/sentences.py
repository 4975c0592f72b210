"""Records and lines whose words are rows of the data files of this room, filled with figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sizing.formats.sentences import paths, rows, sentence, value_at
from sizing.formats.view import Assumption, Explanation, Line

SOLE = re.compile(r"\{([\w.]+)\}")  # a figure alone, which stays a number


def row(file: str, key: str) -> Mapping[str, str]:
    """The texts of a row of a data file of this room, by column."""
    return rows(Path(__file__).with_name(file))[key]


def assumed(key: str, *sources: object, **own: object) -> Assumption:
    """The assumption of a row of assumptions.csv."""
    found: dict[str, Any] = {
        name: value_at(sole[1], own, *sources) if (sole := SOLE.fullmatch(text)) else sentence(text, *sources, **own)
        for name, text in row("assumptions.csv", key).items()
        if name != "key"
    }
    return Assumption(**found)


def said(key: str, *sources: object, **own: object) -> str:
    """The text of a row of sentences.csv."""
    return sentence(row("sentences.csv", key)["text"], *sources, **own)


def line(key: str, *sources: object, **own: object) -> Line:
    """The line of a row of sentences.csv, with its label and its rank among spare lines."""
    found = row("sentences.csv", key)
    return Line(sentence(found["text"], *sources, **own), found["label"], spare=int(found["spare"] or 0))


def lines(file: str, *sources: object, **own: object) -> Iterator[Line]:
    """Yield the lines of a data file of this room in its order; those without a text are left out."""
    for found in rows(Path(__file__).with_name(file)).values():
        if text := sentence(found["text"], *sources, **own):
            yield Line(text, found["label"], spare=int(found["spare"] or 0))


def derived(key: str, value: float | str | None, *sources: object, **own: object) -> Explanation:
    """The derivation of a `value` by a row of explanations.csv."""
    texts = {
        name: sentence(text, *sources, **own) for name, text in row("explanations.csv", key).items() if name != "key"
    }
    found: dict[str, Any] = {**texts, "value": value or 0.0, "kind": texts["kind"] or "derived"}
    return Explanation(**found)


def asked_for(assumption: Assumption) -> str:
    """Write an assumption that a user could have stated, by the rows of askable.csv; empty for another."""
    known = rows(Path(__file__).with_name("askable.csv")).get(assumption.what)
    return "" if known is None else sentence(f"{known['text']}[ ({{note}})]", assumption)


def optimised_words(name: str, stated: Any) -> str:
    """Write an optimisation that is asked for; empty where it needs no words."""
    known = rows(Path(__file__).with_name("sentences.csv")).get(f"with {name}")
    figures = stated if isinstance(stated, dict) else {"value": stated}
    return "" if known is None else sentence(known["text"], dict.fromkeys(paths(known["text"])) | figures)
