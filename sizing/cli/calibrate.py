"""`llmsize calibrate`: a GPU profile fitted to the user's own runs."""

from __future__ import annotations

from typing import Annotated

import typer

from sizing.cli.options import FORMAT_OPTIONS, takes
from sizing.question.options import GivenOptions, option_table


@takes((*option_table("calibrate"), *FORMAT_OPTIONS))
def command(
    given: GivenOptions,
    files: Annotated[
        list[str], typer.Argument(help="CSV files of measured rows of one GPU and engine (llmsize import).")
    ],
    gpu: str | None,
    engine: str | None,
    out: str | None,
) -> None:
    """Fit a GPU's profile to your own runs.

    It fits at most four factors: the compute and the bandwidth that kernels reach, the host's time for a step and for a sequence.

    Exit codes: 0 done, 2 bad input, or the rows do not determine the factors.
    """
    from dataclasses import replace

    from sizing.calibration.own_runs import calibrate, profile
    from sizing.catalog.measured import LeftOut, read_measured
    from sizing.catalog.profiles import load_engine, load_gpu, named_gpu
    from sizing.catalog.shelf import YAML_SUFFIXES, Found
    from sizing.cli.output import chosen_format, say_unread, write, write_file
    from sizing.cli.reader import written_apart
    from sizing.report.calibrate import document, record
    from sizing.specs.errors import Fault, InputError, Part, check
    from sizing.specs.gpu import Gpu

    def base() -> Found[Gpu]:
        named = [gpu] if gpu is not None else list({named_gpu(row.gpu)[0] for row in rows.value.rows})
        if len(named) != 1:
            what = f"the rows are of several GPU types: {', '.join(sorted(named))}"
            raise InputError(Fault(what, field="--gpu", allowed="one name (llmsize gpus), or a profile's path"))
        return load_gpu(named[0])

    output = Part(lambda: chosen_format(given))
    target = Part(lambda: written_apart(out, files, YAML_SUFFIXES))
    rows = Part(lambda: read_measured(files))
    on = Part(base, lambda fault: fault if fault.file else replace(fault, field="--gpu"))
    ran = Part(
        lambda: load_engine(engine) if engine is not None else None, lambda fault: replace(fault, field="--engine")
    )
    check(output, target, rows, on, ran)
    say_unread(rows.value.rows)
    found = calibrate(rows.value.rows, on.value, engine, ", ".join(files))
    unread = [LeftOut(row.id, row.reason) for row in rows.value.unread]
    write_file(target.value, "--out", lambda: profile(found, on.value))
    written = None if target.value is None else str(target.value)
    inputs = {"files": list(files), "gpu": on.value.id, "engine": engine}
    write(document(record(found, on.value.spec.name, inputs, written, unread)), output.value)
