"""`llmsize import`: the measured rows that result files gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sizing.answers.logged import Logged
from sizing.catalog.imports.rows import HEAD
from sizing.formats.view import Document, Facts, Line, Prose, Quantity, Rows, Section, Table, in_words
from sizing.formats.words import number, plural
from sizing.report.parts.quantities import LATENCY_QUANTITIES

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


def _logged(found: Logged) -> LoggedMemory:
    stated = found.facts._asdict()
    file, engine = stated.pop("file"), stated.pop("engine")
    use = found.predicted
    predicted = None if use is None else {name: float(getattr(use, IN_PREDICTIONS.get(name, name))) for name in MEMORY}
    return LoggedMemory(file, engine, {name: value or None for name, value in stated.items()}, predicted, found.why_not)


def rows(record: Imported) -> Rows:
    """The rows in the columns of a file of measured rows."""
    return Rows(HEAD, [tuple(row[name] for name in HEAD) for row in record.rows])


COLUMNS = (
    *(
        in_words(key, heading, shown="differs")
        for key, heading in (("source", "tool"), ("model", "model"), ("gpu", "GPU"))
    ),
    Quantity("n_gpus", "GPUs", shown="differs"),
    in_words("mode", "load", lambda row: _load(row)),  # C=16: requests in flight; 5/s: arrivals; all: at once
    Quantity("isl", "ISL"),
    Quantity("osl", "OSL"),
    *LATENCY_QUANTITIES,
    Quantity("req_per_s", "requests/s"),
    Quantity("output_tok_per_s", "output tok/s"),
)


def _load(row: Mapping[str, Cell]) -> str:
    if row["mode"] == "closed_loop":
        return f"C={row['concurrency']}"
    return str(row["notes"]).partition(";")[0].replace("rate=", "") + "/s" if row["mode"] == "open_loop" else "all"


def _by_load(row: Mapping[str, Cell]) -> tuple[str, str, str, float]:
    load = row["concurrency"]
    return str(row["source"]), str(row["model"]), str(row["gpu"]), load if isinstance(load, int | float) else 0.0


def sections(record: Imported) -> Iterator[Section]:
    """Yield a table of the rows, and the notes of the files."""
    same = [
        str(values.pop())
        for name in ("source", "model", "gpu")
        if len(values := {row[name] for row in record.rows}) == 1
    ]
    yield from _logs(record.logs)
    if not record.rows:
        return
    title = ", ".join([plural(len(record.rows), "measured row"), *same])
    yield Table(COLUMNS, sorted(record.rows, key=_by_load), "/rows", title)
    notes: dict[str, list[str]] = {}
    for row in record.rows:
        for note in filter(None, str(row["notes"] or "").split("; ")):
            if not note.startswith("rate="):
                notes.setdefault(note.partition(":")[0], []).append(note)
    yield Prose(tuple(Line(f"{plural(len(found), 'row')}: {_in_short(found)}") for found in notes.values()))


FACTS = (
    in_words("what", "of one GPU"),
    Quantity("logged", "log", number, shown="always"),
    Quantity("predicted", "predicted", number),
)


def _logs(found: Sequence[LoggedMemory]) -> Iterator[Section]:
    """Yield the memory in each log next to its prediction, and the settings in the log."""
    for one in found:
        said = {name: value for name in MEMORY if isinstance(value := one.facts.get(name), int | float)}
        rows = [
            {"what": MEMORY[name], "logged": value, "predicted": (one.predicted or {}).get(name)}
            for name, value in said.items()
        ]
        yield Table(FACTS, rows, title=f"Start-up log of {one.engine}: {one.file}")
        settings = [f"{name} {value}" for name, value in one.facts.items() if name not in MEMORY and value is not None]
        lines = [Line(", ".join(settings), "Settings")] if settings else []
        lines += [Line(one.why_not, "No prediction")] if one.why_not else []
        yield Facts(tuple(lines))


def _in_short(notes: Sequence[str]) -> str:
    """The note if all rows have the same note, else the first note as an example."""
    return notes[0] if len(set(notes)) == 1 else f"{notes[0]} (the first row; others differ)"


document = partial(Document, sections=sections, rows=rows)
