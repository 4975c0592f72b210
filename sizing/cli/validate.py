"""`llmsize validate`: predictions against published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sizing.cli.options import FORMAT_OPTIONS, takes


@takes(FORMAT_OPTIONS)
def command(
    files: Annotated[list[Path], typer.Argument(help="CSV files of measured rows.")],
    by: Annotated[
        str, typer.Option("--by", help="Columns to group by, with commas; also load and kind (dense, moe).")
    ] = "mode,engine,gpu",
    per_row: Annotated[Path | None, typer.Option("--per-row", help="Write each comparison to this CSV.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw measured against predicted (.svg, .png, .pdf).")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; all cores without it.")] = None,
    **values: Any,
) -> None:
    """Predict every row of measured benchmarks and show how far off the predictions are.

    Exit codes: 0 done, however large the errors; 2 bad input.
    """
    import os

    from sizing.catalog.measured_csv import MeasuredRow, load_measured
    from sizing.cli.options import comma_separated
    from sizing.cli.output import chosen_format, write, write_file
    from sizing.errors import Fault, InputError
    from sizing.report import validation
    from sizing.validation.errors import check_columns
    from sizing.validation.run import predict_rows

    output = chosen_format(values)
    rows: list[MeasuredRow] = []
    faults: list[Fault] = []
    for file in files:
        try:
            rows += load_measured(file)
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    columns = check_columns(comma_separated(by), (name for row in rows for name in row.cells))
    results = predict_rows(rows, jobs or os.cpu_count() or 1)
    document, compared = validation.build(results, [str(file) for file in files], columns)
    if per_row is not None:
        write_file(per_row, validation.per_row(compared))
    if plot is not None:
        from sizing.report.plot_scatter import draw

        draw(compared, plot)
    write(document, output)
