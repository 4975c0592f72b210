"""Everything in a record, as sections for any command: figures by name, lists as tables, and the assumptions.

Names and units are those of JSON in words: `usd_per_hour` 61.55 reads `$61.6 per hour`, `weights_gib` 33.8 `weights 33.8 GiB`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, cast

from sizing.formats.view import GAP, USUAL, Assumption, Explanation, Facts, Line, Quantity, Section, Table, fields
from sizing.formats.words import NOTHING, gib, milliseconds, number, percent, plural, rounded_usd, stated

KINDS = ("assumed", "derived", "datasheet", "measured")  # kinds of assumptions, the least sure first
LEFT_OUT = ("schema", "assumptions", "explanations")  # of no use to a reader, or shown elsewhere
MOST_ROWS = 60  # rows of a list; JSON and CSV have them all
USD = "usd_"
MEAN = "mean"
COUNT = "n"  # the field that counts runs, without a unit
NAME = "name"  # the field that names a record in a list
FOLDABLE = 4  # columns that a terminal has room for, folded
SHORT = 40  # characters of a text that stands among figures; a longer one has a line of its own
DIGITS, CELL_DIGITS, MOST_DIGITS = 4, 3, 9  # digits in a line, in a table, and in a share near 1
WRITERS: dict[str, Callable[[float], str]] = {  # by the suffix of a name
    "_ms": milliseconds,
    "_gib": lambda value: f"{gib(value)} GiB",
    "_w": lambda value: f"{number(value)} W",
    "_s": lambda value: f"{number(value)} s",
}
SHARES = ("headroom", "confidence", "chance", "_utilisation", "_mfu", "_mbu", "_fraction", "_share", "_coverage")
RATE = "_per_s"  # a rate: its suffix does not mean seconds
ABBREVIATED = (
    *("ttft", "itl", "e2e", "isl", "osl", "gpu", "kv", "cuda", "mfu", "mbu"),
    *("tp", "pp", "ep", "dp", "cp", "dcp", "pue", "tdp", "sku"),
)
TERMS = {name: name.upper() for name in ABBREVIATED}
TERMS |= {"gpus": "GPUs", "kwh": "kWh", "usd": "$", "gib": "GiB", "gb": "GB", "w": "W"}
VERDICTS = {"passed": ("fails", "passes"), "feasible": ("infeasible", "feasible")}  # words where false, where true
SAID = {**VERDICTS, "gpus_at_least": ("", "at least so many GPUs")}
NAMED = ("kind", "limit", "reason", "load", "headroom_of", "binding")  # fields with identifiers as values


def details(record: object) -> Iterator[Section]:
    """Yield every figure of a record and its lists, or the derivation of its numbers if it has one; then its assumptions."""
    explanations = getattr(record, "explanations", ())
    yield from explained(explanations) if explanations else _figures(record)
    inputs = assumed(getattr(record, "assumptions", ()), sources=bool(explanations))
    yield inputs._replace(title="Inputs" if explanations and inputs.lines else "")


def _figures(record: object) -> Iterator[Section]:
    fields = {name: _listed(value) for name, value in _fields(record) if name not in LEFT_OUT}
    lists = {name: found for name, value in fields.items() if (found := _records(value))}
    yield Facts(tuple(_lines(fields, "")))
    for name, found in lists.items():
        yield from _table(words_of(name), found)
    for name, value in fields.items():
        if _is_nested(value):
            yield from _tables_in(value, words_of(name))


def _fields(value: object) -> Iterable[tuple[str, object]]:
    return value.items() if isinstance(value, dict) else fields(cast(NamedTuple, value))


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or hasattr(value, "_fields")


def _records(value: object) -> tuple[object, ...]:
    """The records in a list; empty if the value is no list of records."""
    if not isinstance(value, (tuple, list)) or _is_nested(value) or not value or not _is_nested(value[0]):
        return ()
    return tuple(value)


def _listed(value: object) -> object:
    """A mapping of records as a list of records with their names. Figures are written in the unit of the name."""
    if isinstance(value, dict) and value and all(hasattr(entry, "_fields") for entry in value.values()):
        # The path of a figure is written without its unit: `latency.ttft_ms.p95` reads `latency TTFT p95`.
        named = {path: " ".join(words_of(_without_unit(step)) for step in path.split(".")) for path in value}
        return tuple({"name": named[path], **dict(_written_as(path, entry))} for path, entry in value.items())
    return value


def _written_as(path: str, entry: object) -> Iterator[tuple[str, object]]:
    """Yield the fields of a record as text, with the unit of the figure at `path` for its numbers."""
    write = _writer_at(path)
    for name, value in _fields(entry):
        yield name, value if write is None or not isinstance(value, float) else write(value)


def _writer_at(path: str) -> Callable[[float], str] | None:
    """The function that writes the figure at a path such as `latency.ttft_ms.p95`: that of its last step with a unit."""
    return next(filter(None, map(_writer, reversed(path.split(".")))), None)


def _writer(name: str) -> Callable[[float], str] | None:
    """The function that writes a figure with its unit, by its name; None if the name has no unit."""
    if name.endswith(RATE):
        return None
    if f"_{name}".endswith(SHARES):
        return percent
    return next((write for ending, write in WRITERS.items() if f"_{name}".endswith(ending)), None)


def _without_unit(name: str) -> str:
    ending = next((ending for ending in WRITERS if f"_{name}".endswith(ending) and not name.endswith(RATE)), "")
    return f"_{name}".removesuffix(ending)[1:] if ending else name


def words_of(name: str) -> str:
    """Write a name for people: `ttft_ms` reads `TTFT ms`, `usd_per_hour` reads `$/hour`."""
    parts = name.replace("_per_", "/").replace("_", " ").replace(".", " ").split(" ")
    return " ".join("/".join(TERMS.get(word, word) for word in part.split("/")) for part in parts)


def _value_named(name: str, value: str) -> str:
    """Write a text; an identifier is written for people."""
    return words_of(value) if name in NAMED and " " not in value else value


def _lines(fields: dict[str, object], label: str) -> Iterator[Line]:
    """Yield plain values on one line, and a line for each record in them, labelled with its path."""
    fields = {name: found[0] if len(found := _records(value)) == 1 else value for name, value in fields.items()}
    plain = {name: value for name, value in fields.items() if not _is_nested(value) and not _records(value)}
    said = {name: text for name, value in plain.items() if (text := _said(name, value, label))}
    if said:
        of_all = "verdict" if said.keys() <= VERDICTS.keys() else "figures"
        path = " ".join(words_of(_without_unit(step)) for step in label.split())
        yield Line(", ".join(said.values()), path or of_all, style="dim")
    for name, value in fields.items():
        if _is_nested(value):
            yield from _lines(dict(_fields(value)), f"{label} {name}".strip())


def _said(name: str, value: object, label: str) -> str:
    """Write a value with its name and unit. A part of a figure, such as its p95, has the figure's unit."""
    if value is None or value in ((), [], ""):
        return ""
    if isinstance(value, bool) and name in SAID:
        return SAID[name][value]
    if isinstance(value, bool):
        return f"{words_of(name)} {'yes' if value else 'no'}"
    if isinstance(value, (tuple, list)):
        return f"{words_of(name)} {', '.join(map(str, value))}"
    if isinstance(value, str):
        return f"{words_of(name)} {_value_named(name, value)}"
    if not isinstance(value, (int, float)):
        return f"{words_of(name)} {value}"
    called, text = figure_said(name, value, label.rpartition(" ")[2])
    return f"{text} {called}" if name.startswith(USD) else f"{called} {text}".strip()


def figure_said(name: str, value: float, whole: str) -> tuple[str, str]:
    """Write the name of a figure and its value with its unit. A part of the figure `whole`, such as its p95, has the unit of that."""
    if name.startswith(USD):
        return words_of(name.removeprefix(USD)), rounded_usd(value)
    write = _writer(name) or _writer_at(whole)
    if write is not None and name != COUNT:
        return words_of(_without_unit(name)), write(value)
    is_count = "bytes" in name.split("_") and float(value).is_integer()  # bytes, which are exact
    exact = is_count or isinstance(value, int)
    return words_of(name), f"{value:,.0f}" if exact else _written(value, DIGITS)


def _written(value: float, digits: int) -> str:
    """Write a number. A share near 1 has enough digits to differ from 1: 0.99999, not 1.000."""
    return f"{value:.{MOST_DIGITS}g}" if value < 1 <= float(f"{value:.{digits}g}") else number(value, digits)


def _at_limits(record: object) -> Iterator[tuple[str, object]]:
    """Yield the fields of a record; beside a latency, which is a mean, its percentile that has a limit (`limited`)."""
    known = dict(_fields(record))
    limits = known.get("limited")
    for name, value in known.items():
        yield name, value
        limited = dict(_fields(limits[name])) if isinstance(limits, dict) and limits.get(name) is not None else {}
        if limited.get("statistic", MEAN) != MEAN:
            yield f"{_without_unit(name)}_{limited['statistic']}_ms", limited["ms"]


def _table(title: str, records: Sequence[object]) -> Iterator[Table | Facts]:
    """Yield a list of records as a table of the plain values that differ, then the lists inside the records.

    A table that would be wider than a terminal is several tables or, if it has long texts, a paragraph for each record.
    """
    if not records:
        return
    found = [dict(_at_limits(record)) for record in records]
    rows = [{name: _cell(name, value) for name, value in record.items()} for record in found]
    nested = {name for record in records for name, value in _fields(record) if _is_nested(value) or _records(value)}
    names = [name for name in rows[0] if name not in nested]
    told = [name for name in names if len({row[name] for row in rows}) > 1]
    if told in ([], [NAME]):  # records that are alike but for their names
        told = names
    numbers = {name for name in told if all(row[name] == NOTHING or row[name][:1].isdigit() for row in rows)}
    columns = [Quantity(name, words_of(name), str, is_number=name in numbers) for name in told]
    prose = any(len(row[column.key]) > SHORT for row in rows for column in columns)
    if len(records) > 1 and prose and len(columns) > FOLDABLE and _width(columns, rows) > USUAL:
        yield Facts(tuple(line for at, each in enumerate(found, 1) for line in _paragraph(at, each, told)), title)
    elif len(records) > 1:
        for at, part in enumerate(_parts(columns, rows)):
            more = (f"{plural(len(rows) - MOST_ROWS, 'more row')}: --format csv",) if len(rows) > MOST_ROWS else ()
            yield Table(part, rows[:MOST_ROWS], title="" if at else title, notes=more)
    for number_, (row, record) in enumerate(zip(rows, records, strict=True), start=1):
        for name, value in _fields(record):
            yield from _table(f"{title}: {row.get(NAME, number_)}: {words_of(name)}", _records(value))


def _width(columns: Sequence[Quantity], rows: Sequence[dict[str, str]]) -> int:
    """The characters of a table whose cells do not fold; a heading needs its longest word."""
    widest = (max(*map(len, column.heading.split()), *(len(row[column.key]) for row in rows)) for column in columns)
    return sum(width + len(GAP) for width in widest) - len(GAP)


def _parts(columns: Sequence[Quantity], rows: Sequence[dict[str, str]]) -> Iterator[tuple[Quantity, ...]]:
    """Yield the columns of tables that fit a terminal, each with the first column; few columns fold instead."""
    first, *others = columns
    part: tuple[Quantity, ...] = (first,)
    for column in others:
        if len(columns) > FOLDABLE and len(part) > 1 and _width((*part, column), rows) > USUAL:
            yield part
            part = (first,)
        part = (*part, column)
    yield part


def _paragraph(number_: int, values: dict[str, object], told: Sequence[str]) -> Iterator[Line]:
    """Yield a record whose table would be too wide: its name or number, the fields `told` with units, and its long texts."""
    names = [name for name in told if name != NAME]
    texts = {name: text for name in names if isinstance(text := values[name], str) and len(text) > SHORT}
    said = [text for name in names if name not in texts and (text := _said(name, values[name], ""))]
    yield Line(", ".join(said), str(values.get(NAME, number_)))
    yield from (Line(f"{words_of(name)}: {text}", " ") for name, text in texts.items())


def _tables_in(record: object, title: str) -> Iterator[Table | Facts]:
    """Yield the lists in a record and in its nested records as tables."""
    for name, value in _fields(record):
        yield from _table(f"{title}: {words_of(name)}", _records(value))
        if _is_nested(value):
            yield from _tables_in(value, f"{title} {words_of(name)}")


def _cell(name: str, value: object) -> str:
    if isinstance(value, str):
        return _value_named(name, value)
    if value is None or isinstance(value, bool):
        return NOTHING if value is None else "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return "; ".join(map(str, value)) or NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return _written(value, CELL_DIGITS) if isinstance(value, float) else str(value)


def explained(explanations: Iterable[Explanation]) -> Iterator[Facts]:
    """Yield each number with its formula, values and source under its heading. What numbers share is written once, below."""
    for about, of_heading in groupby(explanations, lambda e: e.about):
        yield Facts((), about)
        for (formula, source, kind), group in groupby(of_heading, lambda e: (e.formula, e.source, e.kind)):
            found = list(group)
            shared = (Line(formula, "  formula"), Line(source, "  source"))
            if len(found) > 1:
                yield Facts(tuple(Line(f"{e.what} = {_value(e)}: {e.inputs}") for e in found) + shared, f"[{kind}]")
            for e in found if len(found) == 1 else ():
                yield Facts((shared[0], Line(e.inputs, "  values"), shared[1]), f"{e.what} = {_value(e)}  [{kind}]")


def _value(e: Explanation) -> str:
    return f"{number(e.value, 5) if isinstance(e.value, float) else e.value} {e.unit}".rstrip()


def assumed(assumptions: Iterable[Assumption], *, sources: bool = False) -> Facts:
    """The assumptions of a result, a paragraph for each kind. With `sources`, they are numbered and listed below."""
    numbers: dict[str, int] = {}
    lines: list[Line] = []
    for kind in KINDS:
        said = [_input(a, numbers if sources else None) for a in assumptions if a.kind == kind]
        if said:
            lines.append(Line("; ".join(said), kind.capitalize(), style="dim"))
    for index, text in enumerate(numbers, start=1):
        lines.append(Line(f"[{index}] {text}", "Sources" if index == 1 else " ", style="dim"))
    return Facts(tuple(lines))


def _input(a: Assumption, numbers: dict[str, int] | None) -> str:
    text = f"{a.what}: {stated(a.value)} {a.unit}".rstrip()
    if numbers is None or not a.source:
        return text
    return f"{text} [{numbers.setdefault(a.source, len(numbers) + 1)}]"
