"""`llmsize validate`: predictions against published measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from sizing.cli.options import FORMAT_OPTIONS, JOBS, takes
from sizing.question.options import option_table

COLUMNS = "mode,engine,gpu"  # to group by


class ValidationFiles(NamedTuple):
    """The files to write besides the result, None for a file that is not requested."""

    plot: Path | None
    per_row: Path | None


@takes((*option_table("validate"), JOBS, *FORMAT_OPTIONS))
def command(
    files: Annotated[list[str], typer.Argument(help="CSV files of measured rows.")],
    by: str | None,
    per_row: str | None,
    plot: str | None,
    gpu: str | None,
    **values: Any,
) -> None:
    """Predict rows of measured benchmarks and show the errors.

    A row that cannot be read or predicted is listed with the reason. The others are predicted.

    A thousand rows take about a minute of one core.

    Exit codes: 0 done, however large the errors; 2 bad input, or no row that can be read.
    """
    from dataclasses import replace
    from functools import partial

    from sizing.catalog import shelf
    from sizing.catalog.measured import read_measured
    from sizing.catalog.profiles import load_gpu
    from sizing.cli.output import Bar, chosen_format, complain, say_unread, write, write_file, write_picture
    from sizing.cli.workers import cores, ordered
    from sizing.evidence.errors import check_columns
    from sizing.evidence.predict import predict_rows
    from sizing.report import validate
    from sizing.specs.bands import Corrections
    from sizing.specs.errors import Part, check
    from sizing.specs.units import comma_separated

    output = Part(lambda: chosen_format(values))
    targets = Part(lambda: _targets(plot, per_row, files))
    rows = Part(lambda: read_measured(files))
    columns = Part(
        lambda: check_columns(
            comma_separated(COLUMNS if by is None else by),
            (name for row in rows.value.rows for name in row.cells),
        )
    )
    on = Part(
        lambda: None if gpu is None else load_gpu(gpu),
        lambda fault: fault if fault.file else replace(fault, field="--gpu"),
    )
    check(output, targets, rows, columns, on)
    say_unread(rows.value.rows, columns.value)
    with Bar("rows predicted", len(rows.value.rows)) as bar:
        each = partial(ordered, jobs=values["jobs"] or cores())
        results = predict_rows(rows.value.rows, shelf.only(Corrections), bar, on.value, each)
    record, compared = validate.record(results, files, columns.value, rows.value.unread)
    write(validate.document(record), output.value)
    if targets.value.per_row is not None:
        write_file(targets.value.per_row, "--per-row", validate.per_row(compared))
    if targets.value.plot is not None:
        if figures := validate.figures(compared):
            write_picture(targets.value.plot, figures, abreast=True)
        else:
            complain("--plot: no row is predicted, so there is nothing to draw")


def _targets(plot: str | None, per_row: str | None, files: Sequence[str]) -> ValidationFiles:
    """The files to write. Raises InputError before any work if one can't be written or is also an input."""
    from sizing.cli.reader import Reader, arguments

    with Reader({"plot": plot, "per_row": per_row}) as read:
        found = ValidationFiles(read.picture(long=True), read.target("per_row"))
        read.distinct({"--plot": found.plot, "--per-row": found.per_row}, arguments(files))
    return found
