"""`llmsize validate`: predictions against published measurements."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from sizing.cli.options import FORMAT_OPTIONS, JOBS, takes
from sizing.question.options import GivenOptions, option_table

COLUMNS = "mode,engine,gpu"  # to group by


class ValidateOptions(NamedTuple):
    """The options of the command itself."""

    by: str | None
    per_row: str | None
    plot: str | None
    gpu: str | None
    jobs: int | None


@takes((*option_table("validate"), *JOBS, *FORMAT_OPTIONS))
def command(
    given: GivenOptions, files: Annotated[list[str], typer.Argument(help="CSV files of measured rows.")]
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
    from sizing.cli.output import Bar, chosen_format, say_unread, write, write_file, write_picture
    from sizing.cli.reader import arguments, output_files
    from sizing.cli.workers import cores, ordered
    from sizing.evidence.errors import check_columns
    from sizing.evidence.predict import predict_rows
    from sizing.report import validate
    from sizing.specs.bands import Corrections
    from sizing.specs.errors import Part, check
    from sizing.specs.units import comma_separated

    own, output = given.read(ValidateOptions), Part(lambda: chosen_format(given))
    targets = Part(lambda: output_files(own.plot, own.per_row, "--per-row", arguments(files)))
    rows = Part(lambda: read_measured(files))
    columns = Part(
        lambda: check_columns(
            comma_separated(COLUMNS if own.by is None else own.by),
            (name for row in rows.value.rows for name in row.cells),
        )
    )
    on = Part(
        lambda: None if own.gpu is None else load_gpu(own.gpu),
        lambda fault: fault if fault.file else replace(fault, field="--gpu"),
    )
    check(output, targets, rows, columns, on)
    say_unread(rows.value.rows, columns.value)
    with Bar("rows predicted", len(rows.value.rows)) as bar:
        each = partial(ordered, jobs=own.jobs or cores())
        results = predict_rows(rows.value.rows, shelf.only(Corrections), bar, on.value, each)
    record, compared = validate.record(results, files, columns.value, rows.value.unread)
    write(validate.document(record), output.value)
    write_file(targets.value.rows, "--per-row", lambda: validate.per_row(compared))
    nothing = "--plot: no row is predicted, so there is nothing to draw"
    write_picture(targets.value.plot, lambda: validate.figures(compared), nothing, abreast=True)
