"""`llmsize estimate`: from a workload to the fewest GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sizing.cli.options import (
    EXPLAIN_OPTIONS,
    FORMAT_OPTIONS,
    MEASURED_OPTIONS,
    QUIET_OPTIONS,
    VERIFY_OPTIONS,
    WorkloadName,
    takes,
)
from sizing.question.options import QUESTION_OPTIONS, GivenOptions, option_table, with_help
from sizing.specs.errors import Fault, InputError, raise_any

if TYPE_CHECKING:
    from sizing.answers.answer import Outcome
    from sizing.answers.replay import BusiestMinute
    from sizing.question.options import Options
    from sizing.question.question import Question
    from sizing.report.estimate import Estimate
    from sizing.specs.errors import Part
    from sizing.specs.workload import Workload

TRACE_OPTIONS = option_table("estimate")


UNREPLAYED = "a workload file with the trace as its demand is sized for its rate, without a replay"
LINES = "jsonl"
LINE_FORMATS = with_help(FORMAT_OPTIONS, "estimate")
OPTIONS = (
    *MEASURED_OPTIONS,
    *QUESTION_OPTIONS,
    *TRACE_OPTIONS,
    *LINE_FORMATS,
    *VERIFY_OPTIONS,
    *EXPLAIN_OPTIONS,
    *QUIET_OPTIONS,
)


class EstimateOptions(NamedTuple):
    """The options of the command itself."""

    trace: str | None
    no_verify: bool
    explain: bool
    quiet: bool


class _Sized(NamedTuple):
    """A question to size, and the busiest minute of the trace that its answer replays, if any."""

    question: Question
    minute: BusiestMinute | None


@takes(OPTIONS)
def command(
    given: GivenOptions,
    measured: str | None,
    workload: WorkloadName = None,
    others: Annotated[
        list[str] | None,
        typer.Argument(help="More workloads, with --format jsonl: a line of JSON for each, in this order."),
    ] = None,
) -> int:
    """Find the fewest GPUs that serve a demand within latency limits.

    Exit codes: 0 feasible (with --disaggregate from separate pools), 1 infeasible, 2 bad input.
    """
    from sizing.cli.output import FORMATS, chosen_format, complain, print_text, write
    from sizing.formats.tables import json_line
    from sizing.report.estimate import document, shortest
    from sizing.specs.errors import Part

    if workload is not None and others:
        return _several((workload, *others), given, measured)
    if measured is not None:
        from sizing.cli.measured import print_from

        return print_from(measured, workload, given)
    own, output = given.read(EstimateOptions), Part(lambda: chosen_format(given, (*FORMATS, LINES)))
    found = _record(_sized(workload, given, output), own)
    if output.value == LINES:
        print_text(json_line(found))
    elif not own.quiet:
        write(document(found), output.value)
    elif found.feasible:
        print_text(shortest(found))
    else:
        complain(f"infeasible: {found.limiting.detail}")
    return 0 if found.feasible else 1


def _several(names: Sequence[str], given: GivenOptions, measured: str | None) -> int:
    """Write the estimate of each workload as a line of JSON. All workloads are read before the first answer."""
    from sizing.cli.options import with_settings_of
    from sizing.cli.output import FORMATS, chosen_format, print_text
    from sizing.formats.tables import json_line
    from sizing.specs.errors import Part, check

    def sized(name: str) -> _Sized:
        return _sized(name, with_settings_of(name, given))

    own = given.read(EstimateOptions)
    alone = {"--from": measured, "--trace": own.trace, "--quiet": own.quiet}
    faults = [Fault("is of one workload", field=flag) for flag, value in alone.items() if value]
    if not faults and chosen_format(given, (*FORMATS, LINES)) != LINES:
        faults = [Fault("several workloads are a line of JSON each", field="--format", allowed=LINES)]
    several = [Part(partial(sized, name)) for name in names]
    raise_any(faults)
    check(*several)
    feasible = True
    for each in several:
        found = _record(each.value, own)
        feasible &= found.feasible
        print_text(json_line(found))
    return 0 if feasible else 1


def _sized(workload: str | None, given: GivenOptions, *parts: Part[Any]) -> _Sized:
    """The question of a workload and options, with the demand of the trace that it replays. Raises all faults, those of `parts` too."""
    from sizing.question.ask import question_of, with_confidence
    from sizing.question.options import options_of

    options, minute = with_trace(workload, options_of(given), given, *parts)
    return _Sized(with_confidence(question_of(workload, options, *parts, pooled=True), options), minute)


def _record(sized: _Sized, own: EstimateOptions) -> Estimate:
    """The record of the answer, replayed where a trace is."""
    from sizing.report.estimate import record

    outcome = answered(sized.question, sized.minute, simulated=not own.no_verify, relaxed=not own.quiet)
    return record(outcome, explained=own.explain, minute=sized.minute)


def answered(question: Question, minute: BusiestMinute | None, *, simulated: bool, relaxed: bool) -> Outcome:
    """The outcome of a question, replayed where a trace is."""
    from sizing.answers.estimate import estimate

    outcome = estimate(question, simulated=simulated, relaxed=relaxed)
    if minute is None or not simulated:
        return outcome
    from sizing.answers.replay import replayed

    return replayed(outcome, minute)


class _Traced(NamedTuple):
    """The options of a question, with the demand of the busiest minute of the trace that its answer replays, if any."""

    options: Options
    minute: BusiestMinute | None


def with_trace(workload: str | None, options: Options, given: GivenOptions, *parts: Part[Any]) -> _Traced:
    """The options with the demand of the trace of an option or of the workload. Raises its faults with those of `parts`."""
    from sizing.question.names import asked_of
    from sizing.specs.errors import Part, check

    asked = asked_of(workload, options)
    found = Part(lambda: _busiest(asked, options, given))
    if found.faults:
        check(*parts, found)
    if (minute := found.value) is None:
        return _Traced(options, None)
    return _Traced(minute.as_demand(options, None if asked is None else asked.serving.max_model_len), minute)


def _busiest(asked: Workload | None, options: Options, given: GivenOptions) -> BusiestMinute | None:
    """The busiest minute of the trace; None without a trace. Raises InputError for contradicting options and faulty traces."""
    from sizing.catalog.workloads import trace_to_replay, unlike_replay

    stated = given.values.get("trace")
    trace = stated or (asked and trace_to_replay(asked))
    if not trace:
        return None
    from sizing.answers.replay import minute_of
    from sizing.question.options import check_rules

    check_rules(("a minute of a trace",), given)
    by_path = [path for name in ("demand", "tokens") for path in options.of(name) if "--set" in options.flags[path]]
    raise_any(Fault("contradicts --trace, which has its own", field=options.flags[path]) for path in by_path)
    if stated and asked is not None and (kind := unlike_replay(asked)):
        what = f"cannot size {kind}: a replay is of served requests, one by one, in one pool"
        raise InputError(what, field="--trace", remedy=UNREPLAYED)
    return minute_of(trace)
