"""`llmsize simulate`: a load through the engine's scheduler, in real time or in the ticks of teaching."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sizing.cli.options import FILE_OPTIONS, FORMAT_OPTIONS, SIMULATION_OPTIONS, TICK_OPTIONS, for_one_layout, takes
from sizing.question.fields import (
    DEMAND_OPTIONS,
    DISAGGREGATION_OPTIONS,
    LIMIT_OPTIONS,
    MODEL_OPTIONS,
    OPTIMISATION_OPTIONS,
    SERVING_OPTIONS,
)

if TYPE_CHECKING:
    from sizing.question.values import Part

# What shared options mean where a given deployment is simulated.
HELP = {
    "itl": "Inter-token latency (TPOT): 30ms, p99:50ms; with --ticks the ticks of a decode step.",
    "max_model_len": "Longest sequence to hold; that of the load by default.",
    "isl_max": "Longest prompt; cuts lengths that are spread.",
    "osl_max": "Longest output; cuts lengths that are spread.",
    "rps": "Load in requests/s over all replicas.",
    "concurrency": "Load in requests in flight, over all replicas.",
    "dau": "Load in daily active users, at the peak.",
}
# GPUs are --replicas times the layout here, no budget; --requests with no load is what a mode would say.
SHARED = (
    *MODEL_OPTIONS,
    *(option for option in DEMAND_OPTIONS if option.name not in ("gpus", "mode")),
    *SERVING_OPTIONS,
    *OPTIMISATION_OPTIONS,
    *DISAGGREGATION_OPTIONS,
)
OPTIONS = (
    *(option._replace(help=HELP.get(option.name, option.help)) for option in for_one_layout(SHARED)),
    *(option._replace(help=HELP.get(option.name, option.help)) for option in LIMIT_OPTIONS),
    *SIMULATION_OPTIONS,
    *TICK_OPTIONS,
    *FILE_OPTIONS,
)


class Targets(NamedTuple):
    """The files to write beside the result, None for those not asked for."""

    plot: Path | None
    rows: Path | None


@takes((*OPTIONS, *FORMAT_OPTIONS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    **values: Any,
) -> None:
    """Simulate the engine under a load: throughput, latency percentiles, queue, cache, policies side by side.

    Exit codes: 0 done, 1 unstable, requests refused, a limit missed or no room, 2 bad input.
    """
    from sizing.catalog.paths import expanded
    from sizing.cli.output import chosen_format
    from sizing.cli.reading import Reader
    from sizing.question.values import Part

    def targets() -> Targets:
        read = Reader(values, [])
        found = Targets(read.picture(long=True), read.target("requests_out", "--requests-out"))
        inputs = {
            "--trace": values["trace"],
            "--model": values["model"],
            "--gpu": values["gpu"],
            "the workload": workload,
        }
        sources = {name: expanded(text) for name, text in inputs.items() if text}
        read.distinct({"--plot": found.plot, "--requests-out": found.rows}, sources)
        read.check()
        return found

    output, files = Part(lambda: chosen_format(values)), Part(targets)
    if not (_ticks if values["ticks"] else _real_time)(workload, values, output, files):
        raise typer.Exit(1)


def _real_time(workload: str | None, values: Mapping[str, Any], output: Part[str], files: Part[Targets]) -> bool:
    from sizing.answers.simulate import simulate
    from sizing.cli.output import write
    from sizing.cli.progress import Bar
    from sizing.cli.simulated import question
    from sizing.report.simulate import document, record

    scenario = question(OPTIONS, workload, values, output, files)
    runs = simulate(scenario, Bar)
    found = record(scenario, runs)
    write(document(found), output.value)
    if runs.served:
        _save_requests(files.value.rows, {name: run.requests for name, run in runs.served.items()}, "s")

        def draw(suffix: str) -> bytes:
            from sizing.report.plot_simulate import draw_runs

            return draw_runs(runs.served, suffix)

        _save_plot(files.value.plot, draw)
    return found.passed


def _ticks(workload: str | None, values: Mapping[str, Any], output: Part[str], files: Part[Targets]) -> bool:
    from sizing.cli import ticks
    from sizing.cli.output import write
    from sizing.question.values import Part, check
    from sizing.report.ticks import document, record

    question = Part(lambda: ticks.asked(OPTIONS, workload, values))
    check(output, files, question)
    asked = question.value
    results = ticks.run(asked)
    write(document(record(asked.inputs(), results)), output.value)
    _save_requests(files.value.rows, {name: result.requests for name, result in results.items()}, "tick")

    def draw(suffix: str) -> bytes:
        from sizing.report.plot_simulate import draw_ticks

        return draw_ticks(results, suffix)

    _save_plot(files.value.plot, draw)
    return True


def _save_requests(path: Path | None, runs: Mapping[str, Any], unit: str) -> None:
    if path is None:
        return

    from sizing.cli.output import write_file
    from sizing.report.parts.requests import requests_csv

    write_file(path, "--requests-out", requests_csv(runs, unit).encode())


def _save_plot(path: Path | None, draw: Callable[[str], bytes]) -> None:
    """Draw after the numbers are out, which do not need what draws."""
    from sizing.cli.output import picture_form, write_file

    if path is not None:
        write_file(path, "--plot", draw(picture_form(path)))
