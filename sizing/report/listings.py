"""`llmsize gpus`, `models`, `engines`, `workloads`, `explain`: lists of the catalogue, one entry as stated, one topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from sizing.formats.view import Document, Facts, Line, Prose, Quantity, Rows, Section, Table, labelled, plain
from sizing.formats.words import percent, stated

UNLISTED = ("aliases",)  # too wide for the list; the entry and JSON have it
DESCRIPTION, NAME = "description", "name"  # a description stands below the list, up to its first part
SPARE = ("product", "sure", "mode")  # columns that a narrow terminal drops first
HEADINGS = {
    "of": "GPU or model",
    "usd_per_gpu_hour": "$/GPU-h",
    "usd_per_million_input": "$/M in",
    "usd_per_million_output": "$/M out",
    "confidence": "sure",
    "memory_gib": "GiB",
    "bandwidth_gb_per_s": "GB/s",
    "bf16_tflops": "BF16 TFLOPS",
    "fp8_tflops": "FP8 TFLOPS",
    "parameters_b": "billion parameters",
    "active_parameters_b": "active",
    "isl": "ISL",
    "osl": "OSL",
}
EXACT_DIGITS = 15  # a float holds this many digits of any decimal number
LEADING = ("operation", "precision", "provider", "value")  # keys that come first in a row
# Measured rows are many and similar: they come last, in a short form.
MEASURED = "efficiency"
NOT_CONSTANTS = ("operation", "precision", "engine", "version", "points", "median_error", "p90_error", "source", "date")


class Listing(NamedTuple):
    """A list of the catalogue: column names and rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    schema: str = "llmsize.listing/1"


class Entry(NamedTuple):
    """One entry of the catalogue as its file states it."""

    name: str
    file: str
    entry: dict[str, Any]
    schema: str = "llmsize.entry/1"


class TopicReport(NamedTuple):
    """One topic as its file states it."""

    topic: str
    name: str
    kind: str
    does: str
    formulas: tuple[str, ...]
    modelled: str
    helps: str | None
    does_not_help: str | None
    quality: str | None
    options: tuple[str, ...]
    sources: tuple[str, ...]
    date: str
    schema: str = "llmsize.topic/1"


TOPIC_PARTS = {
    "does": "What it does",
    "formulas": "Formula",
    "modelled": "Modelled",
    "helps": "Helps",
    "does_not_help": "Does not help",
    "quality": "Quality",
    "options": "Options",
    "sources": "Sources",
}
TERM, TERM_PARTS = "term", {"does": "What it is", "modelled": "In llmsize"}


def _listed(record: Listing) -> Iterator[Section]:
    def column(index: int, name: str) -> Quantity:
        numeric = all(isinstance(row[index], (int, float, type(None))) for row in record.rows)
        heading = HEADINGS.get(name, name)
        return Quantity(name, heading, _cell, itemgetter(index), is_number=numeric, shown="always")

    unlisted = (*UNLISTED, DESCRIPTION)
    said = {name for index, name in enumerate(record.columns) if any(row[index] is not None for row in record.rows)}
    listed = [(index, name) for index, name in enumerate(record.columns) if name in said and name not in unlisted]
    columns = tuple(column(*each) for each in listed)
    yield Table(columns, record.rows, "/rows", spare=SPARE)
    if DESCRIPTION in record.columns:
        name, text = map(record.columns.index, (NAME, DESCRIPTION))
        yield Facts(tuple(Line(row[text].partition(";")[0].rstrip("."), row[name]) for row in record.rows))


def _explained(record: TopicReport) -> Iterator[Section]:
    yield Prose(title=record.name)
    for part, label in (TOPIC_PARTS | TERM_PARTS if record.kind == TERM else TOPIC_PARTS).items():
        style = "dim" if part == "sources" else ""
        yield Facts(tuple(line._replace(style=style) for line in labelled(label, _texts(record, part))))


def _texts(record: TopicReport, part: str) -> tuple[str, ...]:
    value = getattr(record, part)
    return (value,) if isinstance(value, str) else tuple(value or ())


def _lines(record: TopicReport) -> Rows:
    rows = [(record.topic, part, text) for part in TOPIC_PARTS for text in _texts(record, part)]
    return Rows(("topic", "section", "text"), rows)


def _stated(record: Entry) -> Iterator[Section]:
    """Yield the fields of an entry as an indented outline, its measured rows, and its numbered sources."""
    sources: dict[str, int] = {}
    fields = {key: value for key, value in record.entry.items() if key != MEASURED}
    yield Prose(title=f"{record.name} ({record.file})")
    yield Prose(tuple(map(Line, _outline(fields, 0, sources))))
    yield Prose(tuple(map(Line, _measured_rows(record.entry.get(MEASURED, ()), sources))))
    yield Prose(tuple(Line(f"[{index}] {text}", style="dim") for text, index in sources.items()))


def _cell(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return stated(value) if isinstance(value, (int, float)) else str(value)


def _measured_rows(rows: Sequence[dict[str, Any]], sources: dict[str, int]) -> Iterator[str]:
    """Write measured rows, one a line. A source that all rows share is written once, above them."""
    stated = [f"{row['source']} ({row['date']})" for row in rows]
    shared = len(set(stated)) == 1
    if rows:
        yield f"{MEASURED}:" + (f" {_numbered(stated[0], sources)}" if shared else "")
    for row, source in zip(rows, stated, strict=True):
        yield f"  {_measured(row)}" + ("" if shared else f" {_numbered(source, sources)}")


def _measured(row: dict[str, Any]) -> str:
    """Write the operation, the engine version, the constants, and the number and errors of points of a row."""
    what = " ".join(str(row[key]) for key in ("operation", "precision", "engine", "version") if row.get(key))
    constants = {key: value for key, value in row.items() if key not in NOT_CONSTANTS and value is not None}
    words = {
        key: " ".join(map(_scalar, value)) if isinstance(value, list) else value for key, value in constants.items()
    }
    fit = [f"n {row['points']}"] if row.get("points") else []
    fit += [f"error {percent(row['median_error'])}"] if row.get("median_error") is not None else []
    return f"{what}: {_scalar(words)}" + (f" ({', '.join(fit)})" if fit else "")


def _outline(value: dict[str, Any], depth: int, sources: dict[str, int]) -> Iterator[str]:
    """Write nested data as an outline: plain values and small rows on one line, sources by number."""
    indent = "  " * depth
    for key, entry in value.items():
        label = indent + key.replace("_", " ")
        if isinstance(entry, dict) and ("source" in entry or any(isinstance(e, dict | list) for e in entry.values())):
            yield f"{label}:"
            yield from _outline(entry, depth + 1, sources)
        elif isinstance(entry, list) and any(isinstance(e, dict) for e in entry):
            yield f"{label}:"
            for row in entry:
                yield f"{indent}  - {_row(row, sources)}"
        elif key in ("source", "sources"):
            yield f"{label}: {_numbered(entry, sources)}"
        else:
            yield f"{label}: {_scalar(entry)}"


def _row(value: Any, sources: dict[str, int]) -> str:
    if not isinstance(value, dict):
        return _scalar(value)
    keys = sorted(value, key=lambda key: key not in LEADING)
    stated = [f"{key.replace('_', ' ')} {_scalar(value[key])}" for key in keys if key != "source"]
    return ", ".join(stated) + (f" {_numbered(value['source'], sources)}" if "source" in value else "")


def _numbered(stated: str | list[str], sources: dict[str, int]) -> str:
    """The numbers of sources; a new source gets the next number."""
    texts = [stated] if isinstance(stated, str) else stated
    return " ".join(f"[{sources.setdefault(text, len(sources) + 1)}]" for text in texts)


def _scalar(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_scalar(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(map(_scalar, value))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:.{EXACT_DIGITS}g}"
    return _cell(value)


# CSV has the rows of a list, one row of the top-level fields of an entry, or a row for each line of a topic.
document_of_list = partial(Document, sections=_listed, rows=lambda record: Rows(record.columns, plain(record.rows)))
document_of_entry = partial(
    Document, sections=_stated, rows=lambda of: Rows(tuple(of.entry), (tuple(plain(of.entry).values()),))
)
document_of_topic = partial(Document, sections=_explained, rows=_lines)
