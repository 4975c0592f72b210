"""`llmsize import`: the measured rows that result files gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sizing.answers.deployment import Logged
from sizing.catalog.imports.rows import HEAD
from sizing.catalog.measured import PERCENTILE_COLUMNS
from sizing.catalog.shelf import only
from sizing.evidence.notes import facts_of
from sizing.formats.view import Document, Facts, Line, Prose, Quantity, Rows, Section, Table, in_words
from sizing.formats.words import NOTHING, number, plural, stated
from sizing.model.architecture import Layout
from sizing.report.parts.quantities import LATENCY_QUANTITIES
from sizing.specs.measurements import Conventions

Cell = str | float | None


class LoggedMemory(NamedTuple):
    """The facts of a start-up log, and their predictions for the settings in the log; null where there is none."""

    file: str
    engine: str
    facts: Mapping[str, Cell]
    predicted: Mapping[str, float] | None
    why_not: str | None


class Imported(NamedTuple):
    """The record of `llmsize import`: measured rows by column (null where unknown), and the memory in logs."""

    files: tuple[str, ...]
    rows: tuple[Mapping[str, Cell], ...]
    logs: tuple[LoggedMemory, ...] = ()
    schema: str = "llmsize.import/1"


# Facts of a log that are also predicted, with their titles.
MEMORY = {
    "weights_gib": "weights, GiB",
    "activation_gib": "activation, GiB",
    "non_torch_gib": "outside the allocator, GiB",
    "graphs_gib": "CUDA graphs, GiB",
    "kv_cache_gib": "KV cache, GiB",
    "kv_cache_tokens": "KV cache, tokens",
    "max_concurrency": "sequences of full length",
}
IN_PREDICTIONS = {"graphs_gib": "cuda_graphs_gib"}


def record(rows: Sequence[Mapping[str, Cell]], files: Sequence[str], logs: Sequence[Logged]) -> Imported:
    """The record of imported rows and of logs."""
    return Imported(tuple(files), tuple(rows), tuple(map(_logged, logs)))


def _logged(logged: Logged) -> LoggedMemory:
    stated = logged.facts._asdict()
    file, engine = stated.pop("file"), stated.pop("engine")
    use = logged.predicted
    predicted = None if use is None else {name: float(getattr(use, IN_PREDICTIONS.get(name, name))) for name in MEMORY}
    return LoggedMemory(
        file, engine, {name: value or None for name, value in stated.items()}, predicted, logged.why_not
    )


def rows(record: Imported) -> Rows:
    """The rows in the columns of a file of measured rows."""
    return Rows(HEAD, [tuple(row[name] for name in HEAD) for row in record.rows])


def _latency(figure: Quantity) -> Quantity:
    """The column of a latency: the mean of a row, or its lowest percentile where the row states no mean."""

    def text(row: Mapping[str, Cell]) -> str | None:
        if (mean := row[figure.key]) is not None:
            return figure.write(mean)
        name = figure.key.removesuffix("_ms")
        percentiles = {column: row[column] for column in PERCENTILE_COLUMNS if column.startswith(f"{name}_")}
        known = ((column, value) for column, value in percentiles.items() if value is not None)
        return next((f"{figure.write(value)} {column.split('_')[1]}" for column, value in known), None)

    return Quantity(figure.key, figure.heading, str, text)


TOKENS_PER_S = Quantity("output_tok_per_s", "output tok/s")
COLUMNS = (
    in_words("mode", "load", lambda row: _load(row)),  # C=16: requests in flight; 5/s: arrivals; all: at once
    Quantity("isl", "ISL"),
    Quantity("osl", "OSL"),
    *map(_latency, LATENCY_QUANTITIES),
    Quantity("req_per_s", "requests/s"),
    TOKENS_PER_S,
)


def _load(row: Mapping[str, Cell]) -> str:
    if row["mode"] == "closed_loop":
        return f"C={row['concurrency']}"
    if row["mode"] != "open_loop":
        return "all"
    rate = facts_of(str(row["notes"]), only(Conventions).notes).rate_per_s
    return f"{stated(rate, 3)}/s" if rate else NOTHING


class Ran(NamedTuple):
    """What a row was measured with, in words; rows with the same words form a table. Empty where nothing is known."""

    tool: str
    model: str
    gpu: str
    layout: str
    weights: str
    engine: str
    with_: str


SETTING = ("source", "model", "gpu", "weight_precision", "engine", "engine_version", "notes")
ALWAYS = ("tool", "model", "gpu", "with_")  # in the title of a table; the others are in it where tables differ in them


def _ran(row: Mapping[str, Cell]) -> Ran:
    tool, model, gpu, weights, engine, version, notes = (str(row[name] or "") for name in SETTING)
    tp, pp, dp, ep, gpus = (int(row[name] or 1) for name in ("tp", "pp", "attention_dp", "ep", "n_gpus"))
    layout = Layout(tp, pp, ep, dp)
    laid_out = str(layout) if gpus == layout.gpus else f"{layout} on {plural(gpus, 'GPU')}"
    ran_with = facts_of(notes, only(Conventions).notes).ran_with or ""
    return Ran(tool, model, gpu, laid_out, weights, f"{engine} {version}".strip(), ran_with)


def sections(record: Imported) -> Iterator[Section]:
    """Yield the logs, a table of the rows of each setting, and the notes of the files."""
    yield from _logs(record.logs)
    found: dict[Ran, list[Mapping[str, Cell]]] = {}
    for row in record.rows:
        found.setdefault(_ran(row), []).append(row)
    shown = [name for name in Ran._fields if name in ALWAYS or len({getattr(ran, name) for ran in found}) > 1]
    for ran in sorted(found):
        title = ", ".join([plural(len(found[ran]), "measured row"), *(getattr(ran, name) for name in shown)])
        records = sorted(found[ran], key=lambda row: row["concurrency"] or 0)
        yield Table(COLUMNS, records, title=title.removesuffix(", "), spare=(TOKENS_PER_S.heading,))
    notes: dict[str, list[str]] = {}
    for row in record.rows:
        for note in filter(None, str(row["notes"] or "").split("; ")):
            if not note.startswith("rate="):
                notes.setdefault(note.partition(":")[0], []).append(note)
    if notes:
        yield Prose(tuple(Line(f"{plural(len(each), 'row')}: {_in_short(each)}") for each in notes.values()))


FACTS = (
    in_words("what", "of one GPU"),
    Quantity("logged", "log", number, shown="always"),
    Quantity("predicted", "predicted", number),
    Quantity("over_predicted", "log over predicted", lambda share: f"{share * 100:+.0f} %"),
)


def _logs(logged: Sequence[LoggedMemory]) -> Iterator[Section]:
    """Yield the memory in each log next to its prediction, and the settings in the log."""
    for one in logged:
        said = {name: value for name in MEMORY if isinstance(value := one.facts.get(name), int | float)}
        rows = []
        for name, value in said.items():
            predicted = (one.predicted or {}).get(name)
            over = value / predicted - 1 if predicted else None
            rows.append({"what": MEMORY[name], "logged": value, "predicted": predicted, "over_predicted": over})
        yield Table(FACTS, rows, title=f"Start-up log of {one.engine}: {one.file}")
        settings = [f"{name} {value}" for name, value in one.facts.items() if name not in MEMORY and value is not None]
        lines = [Line(", ".join(settings), "Settings")] if settings else []
        lines += [Line(one.why_not, "No prediction")] if one.why_not else []
        gib, tokens = (said.get(name) for name in ("kv_cache_gib", "kv_cache_tokens"))
        option = f"--kv-cache-memory-bytes {gib}GiB" if gib else f"--max-total-tokens {tokens}" if tokens else None
        lines += [Line(f"{option}, in memory, estimate and the others", "Take this cache")] if option else []
        yield Facts(tuple(lines))


def _in_short(notes: Sequence[str]) -> str:
    """The note if all rows have the same note, else the first note as an example."""
    return notes[0] if len(set(notes)) == 1 else f"{notes[0]} (the first row; others differ)"


document = partial(Document, sections=sections, rows=rows)
