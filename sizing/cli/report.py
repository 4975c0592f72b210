"""`llmsize report`: the decision and its basis as one HTML file."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING

from sizing.cli.cost import check_gpu, ways_of
from sizing.cli.measured import RESERVED
from sizing.cli.options import COST_OPTIONS, PLAN_OPTIONS, VERIFY_OPTIONS, WorkloadName, takes
from sizing.question.options import (
    DISAGGREGATE,
    LISTED,
    QUESTION_OPTIONS,
    GivenOptions,
    is_given,
    named,
    option_table,
    unpooled,
    without,
)
from sizing.specs.errors import Part, check

if TYPE_CHECKING:
    from pathlib import Path

    from sizing.cli.plan import PlanQuestion

STDOUT = "-"
PAID_OPTIONS = without(COST_OPTIONS, "plot")
PAYING = tuple(option.name for option in PAID_OPTIONS)  # any of these adds the cost, as any of RESERVED adds a plan
OPTIONS = (*QUESTION_OPTIONS, *named(PLAN_OPTIONS, *RESERVED), *PAID_OPTIONS, *VERIFY_OPTIONS)


@takes((*option_table("report"), *OPTIONS))
def command(
    given: GivenOptions,
    output: str | None,
    start: str | None,
    disaggregate: str | None,
    no_verify: bool,
    workload: WorkloadName = None,
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
    from sizing.question.ask import question_of, with_confidence
    from sizing.question.options import options_of
    from sizing.report.page.chapters import html
    from sizing.report.page.record import record

    target, simulated = Part(lambda: _target(output)), not no_verify
    ways = Part(lambda: ways_of(given) if given.any_of(PAYING) else None)
    if start is not None and is_rows(start):
        from sizing.cli.measured import PAID, Additions, answer_from
        from sizing.cli.plan import rows_rules
        from sizing.report.measured import html as measured_html

        given = given.with_(start=None)
        rules = Part(lambda: rows_rules(given) if given.any_of(RESERVED) else None)
        check(target, ways, rules)
        added = Additions((*RESERVED, *PAID), rules.value, ways.value, whole=True)
        answer = answer_from(start, workload, given, added)
        _give(measured_html(answer), target.value, output)
        return 0 if answer.feasible else 1
    pooled = disaggregate is not None
    planning = Part(lambda: _planning(workload, given, pooled=pooled) if given.any_of(RESERVED) else None)
    options = options_of(given)
    asked = question_of(workload, options, target, ways, planning, pooled=True)
    question = with_confidence(asked, options)
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
    document = record(found, _command(workload, output or STDOUT, given), date.today(), plan=plan, cost=cost)
    _give(html(document), target.value, output)
    return 0 if document.decision.feasible else 1


def _give(page: str, target: Path | None, output: str | None) -> None:
    """Write a page to its file, or print it."""
    from sizing.cli.output import complain, print_text, write_file

    if target is None:
        print_text(page.removesuffix("\n"))
    else:
        write_file(target, "--output", lambda: page)
        complain(f"wrote {output}, {target.stat().st_size:,} bytes")


def _planning(workload: str | None, given: GivenOptions, *, pooled: bool) -> PlanQuestion:
    """The question of a plan. Raises InputError for separate pools, which a plan does not take."""
    from sizing.cli.plan import plan_question
    from sizing.specs.errors import InputError

    if pooled:
        raise InputError(unpooled("a plan", DISAGGREGATE))
    return plan_question(workload, given.with_(cloud=None))  # here a cloud is a way to pay


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


def _command(workload: str | None, output: str, given: GivenOptions) -> str:
    """The user's command line, quoted for a shell."""
    words = ["llmsize", "report", *([workload] if workload is not None else [])]
    for option in OPTIONS:
        value = given.values[option.name]
        if value is True:
            words.append(option.flags[0])
        elif option.type == LISTED:
            words += [word for text in value or () for word in (option.flags[0], text)]
        elif is_given(value):
            words += [option.flags[0], f"{value:.12g}" if isinstance(value, float) else str(value)]
    return shlex.join([*words, "-o", output])
