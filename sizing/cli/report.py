"""`llmsize report`: the answer and its explanation as one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.estimate import to_size
from sizing.cli.options import VERIFY_OPTIONS, takes
from sizing.question.values import WORKLOAD_OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

    from sizing.answers.answer import Outcome
    from sizing.question.question import Question
    from sizing.report.compare_record import Compare
    from sizing.report.curve.record import CurveRecord
    from sizing.report.page_record import ChangedInput, RateLine, Report
    from sizing.specs.data import Data

STDOUT = "-"
MOST_LINES = 6  # of a curve, as many as there are colours and markers
LOADS = tuple(2**power for power in range(9))  # requests in flight on one replica
SEED = 0


@takes((*WORKLOAD_OPTIONS, *VERIFY_OPTIONS))
def command(
    workload: Annotated[
        str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="HTML file to write; - for standard output.")
    ] = None,
    **values: Any,
) -> None:
    """Write the answer and what it rests on as one HTML page.

    It has the decision, the curves, alternatives, assumptions, and what would change the answer.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input.
    """
    from sizing.cli.output import complain, print_text, write_file
    from sizing.question.ask import question_of
    from sizing.question.values import Part, options_of
    from sizing.report.page import html

    target = Part(lambda: _target(output))
    asked = question_of(workload, options_of(WORKLOAD_OPTIONS, values), target)
    again = _command(workload, output or STDOUT, values)
    document = page_of(to_size(asked, values), again, simulated=not values["no_verify"])
    page = html(document)
    if target.value is None:
        print_text(page.removesuffix("\n"))
    else:
        write_file(target.value, "--output", page.encode())
        complain(f"wrote {output}, {len(page.encode()):,} bytes")
    if not document.estimate.feasible:
        raise typer.Exit(1)


def _target(output: str | None) -> Path | None:
    """The file to write, None for standard output. Raises InputError where it can't be."""
    from sizing.cli.reading import Reader
    from sizing.specs.errors import Fault, InputError

    if output is None:
        raise InputError(
            Fault("is needed", field="--output", allowed="an HTML file to write, or - for standard output")
        )
    if output == STDOUT:
        return None
    read = Reader({"output": output}, [])
    path = read.target("output", "--output")
    read.check()
    return path


def _command(workload: str | None, output: str, values: Mapping[str, Any]) -> str:
    """The command line as written, quoted for a shell."""
    from sizing.cli.rules import is_given

    words = ["llmsize", "report", *([workload] if workload is not None else [])]
    for option in (*WORKLOAD_OPTIONS, *VERIFY_OPTIONS):
        value = values[option.name]
        if value is True:
            words.append(option.flags[0])
        elif is_given(value):
            words += [option.flags[0], f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join([*words, "-o", output])


def page_of(question: Question, command: str, *, simulated: bool) -> Report:
    """Answer a question with its explanation, sized and simulated alike."""
    from sizing.answers.estimate import estimate
    from sizing.question.question import load_data
    from sizing.report import estimate as report
    from sizing.report.page_record import Report

    data = load_data()
    outcome = estimate(question, data, simulated=simulated)
    document = report.record(outcome)
    closed, i = _is_closed(question), document.inputs
    return Report(
        title=f"GPU sizing of {i['workload'] or i['model']}",
        command=command,
        simulated=simulated,
        estimate=document,
        sensitivity=_sensitivity(question, outcome, data, simulated),
        rates=() if closed else tuple(_rates(outcome, question, simulated)),
        curve=_curve(outcome, question, data, simulated) if closed else None,
        comparison=_comparison(question, data, simulated),
    )


def _sensitivity(question: Question, outcome: Outcome, data: Data, simulated: bool) -> tuple[ChangedInput, ...]:
    from sizing.answers.whatif import effects
    from sizing.cli.progress import Bar
    from sizing.report.page_record import changed_input

    with Bar("Changing inputs") as bar:
        found = effects(question, data, simulated=simulated, progress=bar)
        return tuple(changed_input(effect, outcome.answer) for effect in found)


def _comparison(question: Question, data: Data, simulated: bool) -> Compare | None:
    """Each GPU type and precision at its best; None where there is only one, or no demand."""
    from sizing.answers.compare import candidates_of, compare
    from sizing.cli.progress import Bar
    from sizing.cli.workers import cores, ordered
    from sizing.report.compare_record import record

    demanded = question.target.requests_per_s is not None or question.target.concurrency is not None
    candidates = len(candidates_of(question))
    if not demanded or candidates < 2:
        return None
    each = partial(ordered, jobs=min(cores(), candidates))
    with Bar("Comparing") as bar:
        outcomes = compare(question, data, simulated=simulated, each=each, progress=bar)
    return record(outcomes, question, question.rules.objective)


def _is_closed(question: Question) -> bool:
    """Whether the demand is a closed loop: requests in flight, or offline work with every slot kept full."""
    target = question.target
    return target.concurrency is not None or (target.offline and target.requests_per_s is None)


def _rates(outcome: Outcome, question: Question, simulated: bool) -> Iterator[RateLine]:
    """Yield latency by rate of the best layout of each GPU type and precision, the answer's with its own load."""
    from sizing.answers.lines import by_rate
    from sizing.cli.progress import Bar
    from sizing.report.page_record import rate_line

    answers = outcome.best_of_each()[:MOST_LINES]
    with Bar("Simulating", len(answers)) as bar:
        for done, answer in enumerate(answers, start=1):
            yield rate_line(by_rate(answer, question, simulates=simulated, is_answer=answer is outcome.answer))
            bar(done)


def _curve(outcome: Outcome, question: Question, data: Data, simulated: bool) -> CurveRecord | None:
    """The curve of the best layout of each GPU type and precision; None where none serves the demand."""
    from sizing.answers.curve import evaluated, marked
    from sizing.answers.lines import Grid, Layouts, line_of
    from sizing.answers.points import applying
    from sizing.cli.progress import Bar
    from sizing.cli.workers import cores, ordered
    from sizing.report.curve.record import record
    from sizing.report.page import first_metric

    request = question.with_(requests_per_s=None, concurrency=None, gpu_budget=None, confidence=None)
    lines = (line_of(answer, request, data) for answer in outcome.best_of_each()[:MOST_LINES])
    found = [line for line in lines if line is not None]
    if not found:
        return None
    layouts = [line.layout for line in found if line.layout is not None]
    sizes = (tuple(sorted({getattr(layout, name) for layout in layouts})) for name in Layouts._fields)
    grid = Grid(Layouts(*sizes), LOADS, simulated=simulated, seed=SEED)
    with Bar("Simulating") as bar:
        drawn = evaluated(found, request, grid, each=partial(ordered, jobs=cores()), progress=bar)
    limits = applying(request)
    curve = marked(drawn, limits, first_metric(limits, question.origin.workload.mode))
    return record(curve, request, grid)
