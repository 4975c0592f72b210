"""`llmsize import`: convert result files of benchmark tools to measured rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sizing.cli.options import FORMAT_OPTIONS, takes
from sizing.question.options import GivenOptions, option_table

if TYPE_CHECKING:
    from sizing.catalog.imports.run import RunSettings


*IMPORT_OPTIONS, SECONDS = option_table("import")


@takes((*option_table("import rows"), *IMPORT_OPTIONS, SECONDS, *FORMAT_OPTIONS))
def command(
    given: GivenOptions,
    files: Annotated[
        list[str], typer.Argument(help="Result files of benchmark tools. The content shows which tool wrote them.")
    ],
    out: str | None,
    skip_bad: bool,
    seconds: float | None,
) -> int:
    """Read result files of benchmark tools into measured rows.

    Prometheus scrapes of a running engine are read too. For a start-up log, the measured memory is shown beside the predicted
    memory. `llmsize validate` takes these rows.

    Exit codes: 0 all runs were read, 2 bad input (the good rows are still written).
    """
    from sizing.answers.deployment import logged
    from sizing.catalog.imports.rows import csv_text, import_files
    from sizing.cli.output import chosen_format, complain, write, write_file
    from sizing.cli.reader import above_0, written_apart
    from sizing.report.imports import document, record
    from sizing.specs.errors import Part, check

    output = Part(lambda: chosen_format(given))
    # A plan's settings are no measured facts.
    facts_given = given.without_settings([field.name for field in IMPORT_OPTIONS])
    target = Part(lambda: written_apart(out, files))
    stated, length = Part(lambda: _stated(facts_given)), Part(lambda: above_0(seconds, "--seconds"))
    check(output, target, stated, length)
    rows, faults, facts = import_files(files, stated.value, length.value)
    logs = [logged(each, stated.value) for each in facts]
    if rows:
        write_file(target.value, "--out", lambda: csv_text(rows))
    if rows or logs or output.value == "json":
        write(document(record(rows, files, logs)), output.value)
    for fault in faults:
        complain(str(fault))
    if target.value is not None and not rows:
        complain(f"--out: {out} is not written, as there is no row")
        return 2
    return 2 if faults and not (skip_bad and (rows or logs)) else 0


def _stated(given: GivenOptions) -> RunSettings:
    """The settings of all runs from the options. Raises InputError for unknown names and numbers out of range."""
    from sizing.catalog.imports.rows import stated

    names = {
        "precision": "weight_precision",
        "gpus": "n_gpus",
        "dp": "attention_dp",
        "rps": "rate_per_s",
        "prefix_hit": "prefix",
    }
    values = {names.get(field.name, field.name): given.values[field.name] for field in IMPORT_OPTIONS}
    return stated({name: value for name, value in values.items() if value is not None})
