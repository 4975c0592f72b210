"""`llmsize sweep`: an estimate for every combination of some varied inputs, as rows that stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.options import FORMAT_OPTIONS, takes
from sizing.question.fields import QUESTION_OPTIONS

if TYPE_CHECKING:
    from sizing.cli.swept import Sweeping
    from sizing.report.sweep import SweepRow

FORMATS = (
    FORMAT_OPTIONS[0]._replace(help="table, csv, jsonl, json or markdown; csv and jsonl stream."),
    FORMAT_OPTIONS[1],
)


@takes((*QUESTION_OPTIONS, *FORMATS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            help="KEY=VALUES, for each input to vary: an option that takes a value (isl, rps, tp, precision, gpu, ttft ...), its values with commas, numbers as doublings 1..512 or steps 1..100:10 too.",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every answer by simulation, as estimate does.")
    ] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; all cores without it.")] = None,
    **values: Any,
) -> None:
    """Estimate every combination of the inputs varied, in order, the last one fastest; what can't be served is a row with its reason.

    With --disaggregate a row is of the separate pools, not of serving as one.

    Exit codes: 0 at least one combination is feasible, 1 none is, 2 bad input.
    """
    from sizing.cli.swept import ask

    feasible = _written(ask(workload, {**values, "vary": vary, "verify": verify, "jobs": jobs}))
    if not feasible:
        raise typer.Exit(1)


def _written(asked: Sweeping) -> int:
    """Write all rows, those of CSV and JSON lines as they come; return how many are feasible."""
    from sizing.cli.output import print_text, write
    from sizing.cli.swept import record, swept
    from sizing.formats.tables import csv_lines, json_line
    from sizing.report.sweep import SCHEMA, cells, columns, document, flat

    streams = {
        "csv": lambda rows: csv_lines(map(cells, rows)),
        "jsonl": lambda rows: "\n".join(json_line({"schema": SCHEMA, **flat(row)}) for row in rows),
    }
    stream = streams.get(asked.format)
    if asked.format == "csv":
        print_text(csv_lines([columns(axis.name for axis in asked.axes)]))
    feasible = 0
    kept: list[SweepRow] = []
    for rows in swept(asked, streams=stream is not None):
        feasible += sum(row.feasible for row in rows)
        if stream is not None:
            print_text(stream(rows))
        else:
            kept += rows
    if stream is None:
        write(document(record(asked, kept)), asked.format)
    return feasible
