"""The view model: figures (`Quantity`), records, sections for people, and documents, independent of any format.

A record is a named tuple of plain values and other records; its last field is its `schema`. Records are not dataclasses,
because defining two dozen dataclasses would cost each command 8 ms. JSON writes the record, CSV and Markdown write its `Rows`,
and a terminal shows its sections. Rows and sections are made only when a format needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, cast

from sizing import __version__
from sizing.formats.words import NOTHING, number, plural

if TYPE_CHECKING:
    from sizing.specs.values import Kind

R = TypeVar("R")
N = TypeVar("N", bound=NamedTuple)

ABSENT = object()  # in place of data that a source lacks
USUAL, GAP = 80, "  "  # columns of a terminal; what stands between two columns of a table

Shown = Literal["said", "always", "differs"]  # a column is shown if any row has a value, always, or if rows differ


class Quantity(NamedTuple):
    """A figure: its key in JSON and CSV, its heading, and the function that writes it for people.

    `of` computes it from a record or mapping that has no field of that key. `nothing` is written for None. `shown` says when
    its column appears. The column is right-aligned if `is_number`.
    """

    key: str
    heading: str = ""
    write: Callable[[Any], str] = number
    of: Callable[[Any], Any] | None = None
    is_number: bool = True
    nothing: str = NOTHING
    shown: Shown = "said"
    style: Callable[[Any], str] | None = None  # the style of its cell, from the record: see `Line`

    def value(self, record: Any) -> Any:
        """The figure in `record`; None without one."""
        if self.of is not None:
            return self.of(record)
        return record.get(self.key) if isinstance(record, Mapping) else field(record, self.key)

    def text(self, record: Any) -> str:
        """The figure in `record` as text."""
        return self.text_of(self.value(record))

    def text_of(self, value: Any) -> str:
        """A value of this figure as text."""
        return self.nothing if value is None else self.write(value)


def in_words(key: str, heading: str, of: Callable[[Any], str | None] | None = None, **more: Any) -> Quantity:
    """A quantity with text as its value."""
    return Quantity(key, heading, str, of, is_number=False, **more)


class Line(NamedTuple):
    """A line of a section: text that may fold, its label, and its style. A label of one space continues the label above.

    Styles are `bold`, `dim`, `green` (limit kept), `red` (limit missed), and pairs of these. If the screen is too short, lines
    with a `spare` number above 0 are left out, the lowest number first. A line `of_screen` is about a terminal: a page leaves it
    out. With all details, the texts of `detailed` stand in place of a line, where it is not None.
    """

    text: str
    label: str = ""
    style: str = ""
    spare: int = 0
    of_screen: bool = False
    detailed: tuple[str, ...] | None = None


def labelled(label: str, texts: Iterable[str], spare: int = 0) -> Iterator[Line]:
    """Yield a line for each text; the first line has the label."""
    for index, text in enumerate(texts):
        yield Line(text, " " if index else label, spare=spare)


class Facts(NamedTuple):
    """Labelled lines; `title` is the line above them."""

    lines: tuple[Line, ...]
    title: str = ""


class Segment(NamedTuple):
    """A part of a whole: its name, its size, its letter in a bar of characters."""

    name: str
    size: float
    letter: str


class Whole(NamedTuple):
    """Parts of a whole as a bar. `write` writes a size. The parts may exceed the `whole`."""

    title: str
    parts: tuple[Segment, ...]
    whole: float
    write: Callable[[float], str]


class Prose(NamedTuple):
    """Sentences."""

    lines: tuple[Line, ...] = ()
    title: str = ""


class Table(NamedTuple):
    """Records as rows and quantities as columns, with `notes` below, a line each.

    `at` is the JSON pointer of the records in the document's record. If a terminal is too narrow, the columns with the headings
    in `spare` are left out one by one, in this order; if it is too short, so are the `spare_notes`, which stand above the notes.
    `screen_notes` say where the rest is; they are left out with all details, and on a page.
    """

    columns: tuple[Quantity, ...]
    records: Sequence[Any]
    at: str = ""
    title: str = ""
    notes: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    spare_notes: tuple[str, ...] = ()
    screen_notes: tuple[str, ...] = ()

    def cut(self, most: int, noun: str, others: str) -> Table:
        """The table with its first `most` records, and a note on the screen that `others` shows the rest."""
        more = len(self.records) - most
        if more <= 0:
            return self
        said = (*self.screen_notes, f"{plural(more, noun)}: {others}")
        return self._replace(records=self.records[:most], screen_notes=said)


class Mark(NamedTuple):
    """A point of a series. Its `label` is drawn next to it; its `text` explains it. On a logarithmic axis it is above 0.

    It may be the `chosen` point, or be `ringed` as a member of a special set, such as a Pareto set.
    """

    x: float
    y: float
    label: str = ""
    text: str = ""
    chosen: bool = False
    ringed: bool = False


class Series(NamedTuple):
    """Points of one kind in a figure. `style` is the number of its colour, by default its own. A `hollow` series is also dashed.

    `look` is one of: a line `marked` at its points, a line with `growing` markers, a plain `line`, `steps` that last until the
    next point, the `area` below such steps, or `points` alone. Series with the same name share an entry in the legend.
    """

    name: str
    marks: tuple[Mark, ...]
    style: int | None = None
    hollow: bool = False
    look: Literal["marked", "growing", "line", "steps", "area", "points"] = "marked"


class Bars(NamedTuple):
    """The times of one state in each row of a figure: (start, width) of every bar, for each row from the top.

    `edged` bars have an outline and a hatch, which suits a small number of bars.
    """

    name: str
    rows: tuple[tuple[tuple[float, float], ...], ...]
    edged: bool = True


class Tick(NamedTuple):
    """A place on an axis, and its text."""

    at: float
    text: str


class Figure(NamedTuple):
    """A picture of series over two axes. `logarithmic` names the logarithmic ones. A linear y axis runs from 0 to `top`, if given.

    `guides` are black reference lines, such as a roof. `limit` is a place on the x axis, such as the largest allowed latency.
    `chosen` and `ringed` explain marks of these kinds. A `spare` figure is left out of a screen that is too short for it. The x
    axis shows `span` (by default all points) with `x_ticks` or round numbers. `right` is a figure drawn over this one, with its y
    axis on the right. `bars` are rows in place of a y axis.
    """

    x_name: str
    y_name: str
    series: tuple[Series, ...] = ()
    guides: tuple[Series, ...] = ()
    limit: Tick | None = None
    logarithmic: Literal["", "x", "y", "xy"] = "x"
    title: str = ""
    chosen: str = "chosen"
    ringed: str = ""
    span: tuple[float, float] | None = None
    top: float | None = None
    x_ticks: tuple[Tick, ...] = ()
    right: Figure | None = None
    bars: tuple[Bars, ...] = ()
    spare: bool = False


class Text(NamedTuple):
    """Text for copying without changes: a command, a manifest."""

    text: str
    title: str = ""


Section = Facts | Prose | Table | Figure | Whole | Text


Row = tuple[Any, ...]


class Rows(NamedTuple):
    """The content of CSV and Markdown: the column names, and a tuple of plain values for each row.

    Markdown, which people read, writes a column of `in_words` in that way.
    """

    columns: tuple[str, ...]
    rows: Sequence[Row]
    in_words: Mapping[str, Callable[[Any], str]] = {}


def rows_of(records: Iterable[Any], columns: Sequence[str | Quantity], labels: Mapping[str, Any] | None = None) -> Rows:
    """A row for each record: first `labels`, which are the same in all rows, then `columns` (field names or quantities).

    A label that is also a column is the column.
    """
    figures = [Quantity(column) if isinstance(column, str) else column for column in columns]
    own = {figure.key for figure in figures}
    shared = {key: value for key, value in (labels or {}).items() if key not in own}
    first = tuple(plain(value) for value in shared.values())
    return Rows(
        (*shared, *(figure.key for figure in figures)),
        [(*first, *(plain(figure.value(record)) for figure in figures)) for record in records],
    )


def value_of(name: str, sources: Iterable[object]) -> object:
    """The data of a name in the first of `sources` that has it: a mapping, or an object with attributes that are no functions.

    Raises AttributeError where none has it.
    """
    for source in sources:
        found = source.get(name, ABSENT) if isinstance(source, Mapping) else getattr(source, name, ABSENT)
        if found is not ABSENT and not callable(found):
            return found
    raise AttributeError(f"{name}: no source has it")


def filled(kind: type[N], *sources: object, **own: object) -> N:
    """A record of `kind`: each field comes from `own`, else from the first of `sources` with data of its name.

    Only the field `schema` may fall back to its default. Raises AttributeError for any other field without a source.
    """
    last = {"schema": kind._field_defaults.get("schema", ABSENT)}
    return kind._make(value_of(name, (own, *sources, last)) for name in kind._fields)


# Fields whose record is replaced by its own fields wherever a record is written.
INLINE = ("sizes", "habits", "figures", "of_layout", "of_question")
# Fields that a record has only where they are known.
WHERE_KNOWN = (
    "conversation", "max_num_seqs_lowered_from", "all2all_backend_in_force", "batch_size", "batch_window", "batch_window_s",
)  # fmt: skip


def fields(record: NamedTuple) -> Iterator[tuple[str, object]]:
    """Yield the fields of a record by name. An inner record in a field of `INLINE` is replaced by its own fields."""
    for name, value in zip(record._fields, record, strict=True):
        if name in INLINE:
            yield from fields(cast(NamedTuple, value))
        elif value is not None or name not in WHERE_KNOWN:
            yield name, value


def field(record: object, name: str) -> object:
    """A field of a record, which may be of a record in a field of `INLINE`. Raises KeyError without one."""
    found: object = getattr(record, name) if hasattr(record, name) else dict(fields(cast(NamedTuple, record)))[name]
    return found


class Document(NamedTuple, Generic[R]):
    """A command's result for every format: its record, and the functions that make sections and rows from it."""

    record: R
    sections: Callable[[R], Iterable[Section]]
    rows: Callable[[R], Rows]


class Assumption(NamedTuple):
    """A value that a result depends on, and how it is known. `note` says in few words which of several values it is."""

    what: str
    value: float | bool | str
    unit: str
    kind: Kind
    source: str
    note: str = ""


def taken(what: str, value: float | str, source: str) -> Assumption:
    """An assumption without a unit."""
    return Assumption(what, value, "", "assumed", source)


class Explanation(NamedTuple):
    """The derivation of a number: its formula, the values in the formula, and their source; `about` is its heading."""

    what: str
    value: float | str
    unit: str
    kind: Kind
    formula: str
    inputs: str
    source: str
    about: str = ""


DIGITS = 8  # of figures in JSON and CSV; the search for a rate leaves dust in the ninth, and further ones differ between machines


def plain(value: Any) -> Any:
    """Turn a record into JSON types, with figures rounded to `DIGITS` significant digits. A record becomes an object with schema and version first. NaN and infinity become null.

    Empty explanations and notes are left out. The figures of a single run are put into the record itself.
    """
    if hasattr(value, "_fields"):
        body = {name: plain(entry) for name, entry in fields(value)}
        for name in [name for name in ("explanations", "note") if body.get(name) in ("", [])]:
            del body[name]
        if len(body.get("runs", ())) == 1:
            body |= body.pop("runs")[0]
        if "schema" in body:
            return {"schema": body.pop("schema"), "version": __version__, **body}
        return body
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
