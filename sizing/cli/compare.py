"""`llmsize compare`: one demand on several GPU types and precisions, and what takes the place of GPUs that are there."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sizing.cli.options import FORMAT_OPTIONS, VERIFY_OPTIONS, takes
from sizing.question.fields import QUESTION_OPTIONS


@takes((*QUESTION_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", help="Order: gpus, cost or energy. Default: the objective, gpus without one."),
    ] = None,
    replace: Annotated[
        str | None,
        typer.Option(
            "--replace",
            help="What takes the place of these GPUs: 8xh100-sxm. The most that they serve within the limits is the demand.",
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; all cores without it.")] = None,
    **values: Any,
) -> None:
    """Compare GPU types and weight precisions for one demand, each in its best layout; those that can't serve it stay, with why.

    With --disaggregate separate pools for prefill and decode stand beside them: both of one GPU type, or of those that it names.

    Exit codes: 0 at least one candidate is feasible, 1 none is, 2 bad input.
    """
    from sizing.cli.compared import ask, compared
    from sizing.cli.output import write
    from sizing.report.compare import document

    asked = ask(workload, {**values, "sort": sort, "replace": replace, "jobs": jobs})
    record = compared(asked)
    write(document(record), asked.format)
    if not record.feasible:
        raise typer.Exit(1)
