"""All that a record says, as sections without a word of any command: figures by name, lists as tables, what it rests on.

Names and units are those of JSON in words: `usd_per_hour` 61.55 reads `$61.6 per hour`, `weights_gib` 33.8 `weights 33.8 GiB`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter

from sizing.formats.view import Assumption, Explanation, Facts, Line, Quantity, Section, Table
from sizing.formats.words import NOTHING, gib, milliseconds, number, plural, rounded_usd, stated

KINDS = ("assumed", "derived", "datasheet", "measured")  # of what a result rests on, the least sure first
LEFT_OUT = ("schema", "assumptions", "explanations")  # the first says nothing, the others have sections of their own
MOST_ROWS = 60  # of a list; JSON and CSV have them all
USD = "usd_"
DIGITS, CELL_DIGITS, MOST_DIGITS = 4, 3, 9  # of a line, of a table, of a share near 1
WRITERS: dict[str, Callable[[float], str]] = {
    "_ms": milliseconds,
    "_gib": lambda value: f"{gib(value)} GiB",
    "_w": lambda value: f"{number(value)} W",
}


def details(record: object) -> Iterator[Section]:
    """Yield every figure of a record, its lists, the derivation of its numbers, and what it rests on."""
    fields = {name: _listed(value) for name, value in _fields(record) if name not in LEFT_OUT}
    lists = {name: found for name, value in fields.items() if (found := _records(value))}
    yield Facts(tuple(_lines(fields, "")))
    for name, found in lists.items():
        yield from _table(_words(name), found)
    for name, value in fields.items():
        if _is_nested(value):
            yield from _tables_in(value, _words(name))
    explanations = getattr(record, "explanations", ())
    yield from explained(explanations)
    yield assumed(getattr(record, "assumptions", ()), sources=bool(explanations))


def _fields(value: object) -> Iterable[tuple[str, object]]:
    return value.items() if isinstance(value, dict) else ((name, getattr(value, name)) for name in _names(value))


def _names(value: object) -> tuple[str, ...]:
    return getattr(value, "_fields", ())


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or bool(_names(value))


def _records(value: object) -> tuple[object, ...]:
    """The records of a list; nothing where a value is no list of records."""
    is_list = isinstance(value, (tuple, list)) and not _names(value)
    return tuple(value) if isinstance(value, (tuple, list)) and is_list and value and _is_nested(value[0]) else ()


def _listed(value: object) -> object:
    """A mapping of records as a list of them with their names."""
    if isinstance(value, dict) and value and all(hasattr(entry, "_fields") for entry in value.values()):
        return tuple({"name": name, **dict(_fields(entry))} for name, entry in value.items())
    return value


def _words(name: str) -> str:
    return name.replace("_per_", "/").replace("_", " ")


def _lines(fields: dict[str, object], label: str) -> Iterator[Line]:
    """Yield plain values on one line, and a line for each record in them, labelled with its path."""
    fields = {name: found[0] if len(found := _records(value)) == 1 else value for name, value in fields.items()}
    plain = {name: value for name, value in fields.items() if not _is_nested(value) and not _records(value)}
    said = [text for name, value in plain.items() if (text := _said(name, value, label))]
    if said:
        yield Line(", ".join(said), _words(label) or "figures", style="dim")
    for name, value in fields.items():
        if _is_nested(value):
            yield from _lines(dict(_fields(value)), f"{label} {name}".strip())


def _said(name: str, value: object, label: str) -> str:
    """Write a value with its name and unit; a part of a figure, such as its p95, has the figure's unit."""
    if value is None or value in ((), [], ""):
        return ""
    if isinstance(value, bool):
        return f"{_words(name)} {'yes' if value else 'no'}"
    if isinstance(value, (tuple, list)):
        return f"{_words(name)} {', '.join(map(str, value))}"
    if isinstance(value, str):
        return f"{_words(name)} {value}"
    if isinstance(value, int):
        return f"{_words(name)} {value:,}"
    if not isinstance(value, float):
        return f"{_words(name)} {value}"
    if name.startswith(USD):
        return f"{rounded_usd(value)} {_words(name.removeprefix(USD))}"
    for ending, write in WRITERS.items():
        if name.endswith(ending) or label.endswith(ending):
            return f"{_words(name.removesuffix(ending))} {write(value)}"
    return f"{_words(name)} {_written(value, DIGITS)}"


def _written(value: float, digits: int) -> str:
    """Write a number; a share near 1 has the digits that tell it from 1: 0.99999, not 1.000."""
    return f"{value:.{MOST_DIGITS}g}" if value < 1 <= float(f"{value:.{digits}g}") else number(value, digits)


def _table(title: str, records: Sequence[object]) -> Iterator[Table]:
    """Yield a list of records as a table of the plain values that differ, then the lists in them."""
    if not records:
        return
    rows = [{name: _cell(value) for name, value in _fields(record)} for record in records[:MOST_ROWS]]
    nested = [
        name
        for name in rows[0]
        if any(
            _is_nested(value) or _records(value) for record in records for key, value in _fields(record) if key == name
        )
    ]
    columns = [
        Quantity(name, _words(name), str, itemgetter(name), is_number=_is_number(rows, name), shown="differs")
        for name in rows[0]
        if name not in nested
    ]
    more = len(records) - len(rows)
    notes = (Line(f"{plural(more, 'more row')}: --format csv", style="dim"),) if more else ()
    if len(records) > 1:
        yield Table(tuple(columns), rows, title=title, notes=notes)
    for number_, record in enumerate(records, start=1):
        for name, value in _fields(record):
            yield from _table(f"{title} {number_}: {_words(name)}", _records(value))


def _tables_in(record: object, title: str) -> Iterator[Table]:
    """Yield the lists in a record and in the records in it."""
    for name, value in _fields(record):
        yield from _table(f"{title}: {_words(name)}", _records(value))
        if _is_nested(value):
            yield from _tables_in(value, f"{title} {_words(name)}")


def _cell(value: object) -> str:
    if value is None or isinstance(value, bool):
        return NOTHING if value is None else "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return "; ".join(map(str, value)) or NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    return _written(value, CELL_DIGITS) if isinstance(value, float) else str(value)


def _is_number(rows: Sequence[dict[str, str]], name: str) -> bool:
    return all(row[name] == NOTHING or row[name][:1].isdigit() for row in rows)


def explained(explanations: Iterable[Explanation]) -> Iterator[Facts]:
    """Yield each number with its formula, the values in it, and their source."""
    for e in explanations:
        value = number(e.value, 5) if isinstance(e.value, float) else str(e.value)
        lines = (Line(e.formula, "  formula"), Line(e.inputs, "  values"), Line(e.source, "  source"))
        yield Facts(lines, f"{e.what} = {value} {e.unit}".rstrip() + f"  [{e.kind}]")


def assumed(assumptions: Iterable[Assumption], *, sources: bool = False) -> Facts:
    """What a result rests on, a paragraph for each kind; with `sources`, each by number and listed below."""
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
