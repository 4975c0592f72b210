"""`llmsize sweep` for the terminal: how many combinations can be served, and a row for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import milliseconds, money, number, plural, stated
from sizing.report.documents_sweep import Sweep, column
from sizing.report.parts.assumptions import assumed
from sizing.report.parts.layouts import layout_in

MOST_ROWS = 200
MOST_REASONS = 6

Cell = Callable[[dict[str, Any]], str]


def blocks(document: Sweep) -> Iterator[Block]:
    """Yield the blocks of a sweep."""
    yield Block(tuple(_summary(document)))
    yield _table(document)
    yield Block(tuple(_reasons(document)))
    yield from blocks_of(assumed(document.assumptions, sources=False))


def _summary(document: Sweep) -> Iterator[Line]:
    yield Line(f"{document.feasible_rows:,} of {plural(len(document.rows), 'combination')} can be served", style="bold")
    told = {"model": "Model", "workload": "Workload", "gpu": "GPU", "engine_version": "Engine"}
    i = document.inputs
    for name, label in told.items():
        if i.get(name) is not None:
            yield Line(
                f"{i.get('engine_title', '')} {i[name]}".strip() if name == "engine_version" else str(i[name]), label
            )
    simulated = "each size" if document.verified else "no: figures are the closed form's (--verify)"
    yield Line(simulated, "Simulated")


def _table(document: Sweep) -> Block:
    shown = document.rows[:MOST_ROWS]
    columns: list[tuple[str, bool, Cell]] = [
        (name, not isinstance(values[0], str), _value(column(name))) for name, values in document.varied.items()
    ]
    columns += [
        ("GPUs", True, lambda row: number(row["gpus"])),
        ("GPU", False, lambda row: row["gpu"] or "-"),
        ("weights", False, lambda row: row["weight_precision"] or "-"),
        ("layout", False, _shape),
        ("TTFT", True, lambda row: milliseconds(row["ttft_ms"])),
        ("ITL", True, lambda row: milliseconds(row["itl_ms"])),
        ("req/s per GPU", True, lambda row: number(row["requests_per_s_per_gpu"])),
        ("$/h", True, lambda row: money(row["usd_per_hour"])),
        ("limit", False, lambda row: row["limit"] if row["feasible"] else f"no: {row['limit']}"),
    ]
    told = [(heading, right, [cell(row) for row in shown]) for heading, right, cell in columns]
    varied = len(document.varied)
    kept = told[:varied] + [
        entry for entry in told[varied:] if entry[0] not in ("GPU", "weights") or len(set(entry[2]) - {"-"}) > 1
    ]
    more = len(document.rows) - len(shown)
    return Block(
        lines=(Line(f"{plural(more, 'more row')}: --format csv", style="dim"),) if more else (),
        columns=tuple(heading for heading, _, _ in kept),
        right=tuple(right for _, right, _ in kept),
        rows=tuple(zip(*(cells for _, _, cells in kept), strict=True)),
    )


def _value(name: str) -> Cell:
    def cell(row: dict[str, Any]) -> str:
        value = row[name]
        return f"{value:,}" if isinstance(value, int) else stated(value)

    return cell


def _shape(row: dict[str, Any]) -> str:
    if row["pools"] is not None:
        return str(row["pools"])
    return f"{row['replicas']:,} x {layout_in(row)}" if row["feasible"] else "-"


def _reasons(document: Sweep) -> Iterator[Line]:
    """Yield the first few reasons why combinations can't be served."""
    reasons = dict.fromkeys(row["detail"] for row in document.rows if not row["feasible"])
    for index, reason in enumerate(list(reasons)[:MOST_REASONS]):
        yield Line(reason, " " if index else "Not possible")
    if len(reasons) > MOST_REASONS:
        yield Line(f"and {len(reasons) - MOST_REASONS:,} more reasons: --format csv", " ")
