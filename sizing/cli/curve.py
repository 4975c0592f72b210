"""`llmsize curve`: throughput against latency, a line for each GPU, precision and layout; the best point within the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.options import (
    DEMAND_OPTIONS,
    DISAGGREGATION_OPTIONS,
    FORMAT_OPTIONS,
    LIMIT_OPTIONS,
    MODEL_OPTIONS,
    OPTIMISATION_OPTIONS,
    SERVING_OPTIONS,
    VERIFY_OPTIONS,
    takes,
)

if TYPE_CHECKING:
    from sizing.cli.curved import Asking
    from sizing.report.documents_curve import Curve

OWN = ("tp", "pp")  # lists here
OF_DEMAND = ("isl", "osl", "isl_max", "osl_max", "mode")  # the load is one replica's concurrency, whatever the demand
GPU_HELP = "GPU type, several with commas, a profile's path, or all. Default: the workload's, or as measured."
CURVE_OPTIONS = (
    *(option._replace(help=GPU_HELP) if option.name == "gpu" else option for option in MODEL_OPTIONS),
    *(option for option in DEMAND_OPTIONS if option.name in OF_DEMAND),
    *LIMIT_OPTIONS,
    *(option for option in SERVING_OPTIONS if option.name not in OWN),
    *OPTIMISATION_OPTIONS,
    *DISAGGREGATION_OPTIONS,
)
CLOSED_FORM = (VERIFY_OPTIONS[0]._replace(help="Take every point from the closed form, none from simulation."),)


@takes((*CURVE_OPTIONS, *FORMAT_OPTIONS, *CLOSED_FORM))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    tp: Annotated[
        str | None, typer.Option("--tp", help="Tensor parallelism, a line each: 1,2,4,8 (default), or doublings 1..8.")
    ] = None,
    pp: Annotated[str | None, typer.Option("--pp", help="Pipeline parallelism, a line each; 1 by default.")] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            "--concurrency",
            help="Requests in flight on one replica: 1,8,64, doublings 1..512 (default), steps 10..100:10. On separate pools over both, by default up to the most that they hold.",
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals",
            help="closed (default): so many in flight at any time, as benchmark tools hold it; poisson (with --disaggregate always): on average, at a rate, as estimate sizes.",
        ),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(
            "--x",
            help="Latency to draw against: ttft, itl or e2e. Default: TTFT of streams (ITL or E2E where that alone is limited), else E2E.",
        ),
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            "--measured", help="CSV file of measured rows (mode closed_loop); predictions join with a workload or -m."
        ),
    ] = None,
    measured_only: Annotated[
        bool, typer.Option("--measured-only", help="Take -m and the workload as filters of the rows; predict nothing.")
    ] = False,
    plot: Annotated[
        str | None, typer.Option("--plot", help="Draw it into FILE.svg, .png or .pdf (llmsize[plot]).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of drawn lengths; equal seeds give equal output.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; all cores without it.")] = None,
    **values: Any,
) -> None:
    """Draw throughput against latency and mark the best point within the limits, Pareto set, knees and full caches.

    Exit codes: 0 done, 1 no point keeps the limits, 2 bad input.
    """
    from sizing.cli.curved import ask
    from sizing.cli.output import complain, picture_form, write, write_file

    own = {"tp": tp, "pp": pp, "concurrency": concurrency, "arrivals": arrivals, "x": x, "measured": measured}
    rest = {"measured_only": measured_only, "plot": plot, "seed": seed, "jobs": jobs}
    asked = ask(workload, CURVE_OPTIONS, {**values, **own, **rest})
    document = _built(asked)
    write(document, asked.format)
    if asked.picture is not None:
        from sizing.report.plot_curve import draw, drawable

        if drawable(document):
            write_file(asked.picture, "--plot", draw(document, picture_form(asked.picture)))
        else:
            complain("--plot: no point has both latency and throughput, so there is nothing to draw")
    if not document.feasible:
        raise typer.Exit(1)


def _built(asked: Asking) -> Curve:
    """Return the document: measured lines, then predicted ones, each load simulated or in closed form."""
    from collections.abc import Iterator

    from sizing.formats.view import Assumption
    from sizing.report import curve_inputs, curve_predicted
    from sizing.report.curve import build
    from sizing.report.documents_curve import CurveLine

    drawn, file = asked.drawn, asked.measured
    lines: list[CurveLine] = [] if file is None else [*file.lines]
    before = len(lines)
    if drawn is not None:
        lines += curve_predicted.lines(drawn.found, _seen(asked), drawn.question)
        if drawn.pools:
            from sizing.report import curve_pools

            lines += curve_pools.lines(drawn.pools, _seen_of_pools(asked), drawn.question)

    def rests_on(number: int | None) -> Iterator[Assumption]:
        own = None if number is None or number < before else number - before
        return curve_inputs.rests_on(drawn, file, own)

    return build(lines, asked.limits, asked.metric, curve_inputs.inputs(drawn, file), rests_on)


def _seen(asked: Asking) -> Any:
    """Return what is seen of each load of each line that fits."""
    from functools import partial

    from sizing.answers import curve
    from sizing.cli.progress import Bar
    from sizing.cli.workers import ordered

    assert asked.drawn is not None
    request, tokens, loads = asked.drawn.question, asked.drawn.asked.workload.tokens, asked.drawn.in_flight
    arrivals = asked.drawn.arrivals
    lines = [one for one in asked.drawn.found if isinstance(one, curve.Line)]
    if not asked.drawn.simulated:
        return [curve.closed_form(line, loads, arrivals) for line in lines]
    with Bar("Simulating", len(lines) * len(loads)) as bar:
        return curve.simulated_lines(
            lines,
            request,
            tokens,
            loads,
            seed=asked.drawn.seed,
            arrivals=arrivals,
            each=partial(ordered, jobs=asked.jobs),
            progress=bar,
        )


def _seen_of_pools(asked: Asking) -> Any:
    """Return what is seen of each load of each pair of pools."""
    from functools import partial

    from sizing.answers import pool_curve
    from sizing.cli.progress import Bar
    from sizing.cli.workers import ordered

    assert asked.drawn is not None
    drawn = asked.drawn
    lines = [one for one in drawn.pools if isinstance(one, pool_curve.PoolLine)]
    if not drawn.simulated:
        return pool_curve.seen(lines, drawn.question, None)
    with Bar("Simulating pools", sum(len(line.in_flight) for line in lines)) as bar:
        each = partial(ordered, jobs=asked.jobs)
        tokens = drawn.asked.workload.tokens
        return pool_curve.seen(lines, drawn.question, tokens, seed=drawn.seed, each=each, progress=bar)
