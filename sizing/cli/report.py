"""`llmsize report`: the decision and its basis as one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.cost import check_gpu, ways_of
from sizing.cli.estimate import to_size
from sizing.cli.measured import RESERVED
from sizing.cli.options import COST_OPTIONS, PLAN_OPTIONS, VERIFY_OPTIONS, WorkloadName, takes
from sizing.question.options import DISAGGREGATE, LISTED, QUESTION_OPTIONS, is_given, named, unpooled, without
from sizing.specs.errors import Part, check

if TYPE_CHECKING:
    from pathlib import Path

    from sizing.cli.plan import PlanQuestion
    from sizing.planning.cost import Ways

STDOUT = "-"
RULE_OPTIONS = named(PLAN_OPTIONS, *RESERVED)  # any of these adds a plan
PAID_OPTIONS = without(COST_OPTIONS, "plot")  # any of these adds the cost
OPTIONS = (*QUESTION_OPTIONS, *RULE_OPTIONS, *PAID_OPTIONS, *VERIFY_OPTIONS)


@takes(OPTIONS)
def command(
    workload: WorkloadName = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="HTML file to write; - for standard output.")
    ] = None,
    **values: Any,
) -> int:
    """Write the decision and what it rests on as one HTML page.

    The page shows the answer, what would change it, other GPU types, curves and assumptions. With options of reserves or growth
    it has the plan too; with ways to pay, the cost.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input.
    """
    from datetime import date

    from sizing.answers.brief import brief
    from sizing.cli.measured import is_rows
    from sizing.cli.output import Bar
    from sizing.cli.workers import cores, ordered
    from sizing.question.ask import question_of
    from sizing.question.options import options_of
    from sizing.report.page.chapters import html
    from sizing.report.page.record import record

    target, simulated = Part(lambda: _target(output)), not values["no_verify"]
    ways = Part(lambda: _ways(values))
    planning = Part(lambda: None if is_rows(values["start"]) else _planning(workload, values))
    if is_rows(values["start"]):
        from sizing.cli.measured import PAID, Added, answer_from
        from sizing.cli.plan import rows_rules
        from sizing.report.measured import html as measured_html

        rules = Part(lambda: rows_rules(values) if _plans({**values, "start": None}) else None)
        check(target, ways, rules)
        added = Added((*RESERVED, *PAID), rules.value, ways.value, whole=True)
        answer = answer_from(values["start"], workload, {**values, "start": None}, added)
        _give(measured_html(answer), target.value, output)
        return 0 if answer.feasible else 1
    asked = question_of(workload, options_of(QUESTION_OPTIONS, values), target, ways, planning, pooled=True)
    question = to_size(asked, values)
    cost = plan = None
    if ways.value is not None:
        from sizing.planning.cost import cost as cost_of
        from sizing.report.cost import record as cost_record

        check_gpu(asked)
        cost = cost_record(cost_of(question, ways.value, simulated=simulated))
    if planning.value is not None:
        from sizing.cli.plan import planned

        plan = planned(planning.value, None, simulated=simulated)
    found = brief(question, simulated=simulated, each=partial(ordered, jobs=cores()), watch=Bar)
    document = record(found, _command(workload, output or STDOUT, values), date.today(), plan=plan, cost=cost)
    _give(html(document), target.value, output)
    return 0 if document.decision.feasible else 1


def _ways(values: Mapping[str, Any]) -> Ways | None:
    """The ways to pay; None if none is asked for."""
    return ways_of(values) if any(is_given(values[option.name]) for option in PAID_OPTIONS) else None


def _plans(values: Mapping[str, Any]) -> bool:
    return any(is_given(values[option.name]) for option in RULE_OPTIONS)


def _give(page: str, target: Path | None, output: str | None) -> None:
    """Write a page to its file, or print it."""
    from sizing.cli.output import complain, print_text, write_file

    if target is None:
        print_text(page.removesuffix("\n"))
    else:
        write_file(target, "--output", page)
        complain(f"wrote {output}, {target.stat().st_size:,} bytes")


def _planning(workload: str | None, values: Mapping[str, Any]) -> PlanQuestion | None:
    """The question of a plan; None if no rule of a plan is given."""
    if not _plans(values):
        return None
    from sizing.cli.plan import ask
    from sizing.specs.errors import InputError

    if values["disaggregate"] is not None:
        raise InputError(unpooled("a plan", DISAGGREGATE))
    absent = {option.name: False if option.type is bool else None for option in PLAN_OPTIONS}
    return ask(workload, {**absent, **values, "cloud": None})  # here a cloud is a way to pay


def _target(output: str | None) -> Path | None:
    """The file to write, None for standard output. Raises InputError if it can't be written."""
    from pathlib import Path

    from sizing.cli.reader import written_apart
    from sizing.specs.errors import InputError

    if output is None:
        raise InputError("is needed", field="--output", allowed="an HTML file to write, or - for standard output")
    if output == STDOUT:
        return None
    return written_apart(output, (), (".html", ".htm") if Path(output).suffix else (), option="--output")


def _command(workload: str | None, output: str, values: Mapping[str, Any]) -> str:
    """The user's command line, quoted for a shell."""
    words = ["llmsize", "report", *([workload] if workload is not None else [])]
    for option in OPTIONS:
        value = values[option.name]
        if value is True:
            words.append(option.flags[0])
        elif option.type == LISTED:
            words += [word for text in value or () for word in (option.flags[0], text)]
        elif is_given(value):
            words += [option.flags[0], f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join([*words, "-o", output])
