"""`llmsize compare`: one demand on several GPU types and precisions, and the replacement of existing GPUs."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, NamedTuple

from sizing.cli.options import FORMAT_OPTIONS, MEASURED_OPTIONS, VERIFY_OPTIONS, WorkloadName, takes
from sizing.question.options import (
    QUESTION_OPTIONS,
    WORKLOAD_OPTIONS,
    GivenOptions,
    group,
    option_table,
    sets_demand,
    states_demand,
)
from sizing.specs.errors import Fault, InputError, placed

if TYPE_CHECKING:
    from sizing.catalog.shelf import Found
    from sizing.question.question import Question
    from sizing.report.compare import Replaced
    from sizing.specs.workload import Aim, Workload

OWN_OPTIONS = option_table("compare")
SORTS: tuple[Aim, ...] = ("gpus", "cost", "energy")
DEMANDS = tuple(option.name for option in WORKLOAD_OPTIONS if states_demand(option))
STAND_IN_PER_S = 1.0  # a demand used only to validate the other options
_REPLACE = re.compile(r"\s*([0-9]{1,7})\s*[xX]\s*([^,]+?)\s*\Z")
OF_DEMANDS = "one of --rps, --users, --dau, --concurrency, --mean-rps (or demand: in the workload), or --replace for what GPUs serve now"
NO_DEMAND = Fault("there is no demand to compare for", field="demand", allowed=OF_DEMANDS)


class CompareOptions(NamedTuple):
    """The options of the command itself, and the headroom, which is over what replaced GPUs serve."""

    sort: str | None
    replace: str | None
    jobs: int | None
    no_verify: bool
    headroom: str | None


@takes((*MEASURED_OPTIONS, *OWN_OPTIONS, *QUESTION_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS))
def command(given: GivenOptions, measured: str | None, workload: WorkloadName = None) -> int:
    """Compare GPU types and weight precisions for one demand.

    Each candidate has its best layout. Candidates that cannot serve the demand are listed with the reason.

    With --disaggregate, separate pools for prefill and decode are compared too: both of one GPU type, or of the types that it
    names.

    Exit codes: 0 at least one candidate is feasible, 1 none is, 2 bad input.
    """
    from functools import partial

    from sizing.answers.compare import candidates_of, compare
    from sizing.cli.output import Bar, write
    from sizing.cli.workers import cores, ordered
    from sizing.report.compare import document, record

    own = given.read(CompareOptions)
    if measured is not None:
        from sizing.cli.measured import Additions, print_from

        return print_from(measured, workload, given, Additions(whole=True, sort=own.sort))
    if own.replace is not None:  # the replaced GPUs set the demand
        given = given.without_settings(group("OF_DEMAND"))
    asked = _request(workload, given, own)
    simulated, jobs = not own.no_verify, min(own.jobs or cores(), len(candidates_of(asked.question)))
    each = partial(ordered, jobs=jobs)
    with Bar("Comparing") as bar:
        outcomes = compare(asked.question, sort=asked.sort, simulated=simulated, each=each, progress=bar)
    found = record(outcomes, asked.question, asked.sort, asked.replaced)
    write(document(found), asked.format)
    return 0 if found.feasible else 1


class GpusToReplace(NamedTuple):
    """The GPUs to replace: their number and type."""

    gpus: int
    name: str


class CompareRequest(NamedTuple):
    """The outcomes to compare, their order, and the output format."""

    question: Question
    sort: Aim
    replaced: Replaced | None
    format: str


def _request(workload: str | None, given: GivenOptions, own: CompareOptions) -> CompareRequest:
    """Resolve the question, and the load of the GPUs to replace. Raises InputError with all faults that it can find."""
    from sizing.cli.output import chosen_format
    from sizing.question.ask import question_of, with_confidence
    from sizing.question.names import workload_at
    from sizing.question.options import options_of
    from sizing.specs.errors import Part

    output, sort = Part(lambda: chosen_format(given)), Part(lambda: _sort(own.sort))
    found = Part(lambda: None if workload is None else workload_at(workload))
    replacing = Part(lambda: None if own.replace is None else _to_replace(own.replace, given))
    stated = Part(lambda: _check_demand(found.value, given, replacing.value))
    whose = workload if found.faults else found.value
    stands_in = replacing.faults or stated.faults or replacing.value is not None
    options = options_of(given.with_(rps=STAND_IN_PER_S) if stands_in else given)
    asked = question_of(whose, options, output, sort, found, replacing, stated, pooled=True)
    replaced = None
    if replacing.value is not None:
        rest = None if found.value is None else _without_demand(found.value)
        replaced = _replaced(rest, given, replacing.value, simulated=not own.no_verify)
        # The growth is that stated for this comparison.
        served = given.with_(rps=replaced.requests_per_s, headroom=own.headroom or "0")
        asked = question_of(rest, options_of(served), pooled=True)
    order = sort.value or asked.rules.objective
    return CompareRequest(with_confidence(asked, options), order, replaced, output.value)


def _sort(text: str | None) -> Aim | None:
    from sizing.cli.reader import Reader

    with Reader() as read:
        return None if text is None else read.chosen(text, SORTS, "--sort", "order")


def _to_replace(text: str, given: GivenOptions) -> GpusToReplace:
    """The GPUs to replace. Raises InputError if they are misspelt, or if a demand is stated too."""
    from sizing.cli.reader import Reader
    from sizing.question.options import broken

    match = _REPLACE.match(text)
    replacing = GpusToReplace(int(match[1]), match[2]) if match is not None else GpusToReplace(0, "")
    with Reader(broken(("GPUs to replace",), given)) as read:
        if sets_demand(given):
            read.fault("states a demand, and the GPUs of --replace say what it is", "--set")
        if replacing.gpus < 1:
            message = f"{text!r} is no number of GPUs of one type"
            read.fault(message, "--replace", "as 8xh100-sxm (llmsize gpus)")
    return replacing


def _check_demand(workload: Found[Workload] | None, given: GivenOptions, replacing: GpusToReplace | None) -> None:
    stated = given.any_of(DEMANDS) or sets_demand(given)
    if replacing is None and not stated and (workload is None or workload.spec.demand is None):
        raise InputError(NO_DEMAND)


def _without_demand(workload: Found[Workload]) -> Found[Workload]:
    """A workload without its demand and peak rules, which do not affect the most that GPUs serve."""
    planning = workload.spec.planning.model_copy(update={"poisson_percentile": None})
    ranges = {name: span for name, span in workload.spec.uncertain.items() if not name.startswith("demand.")}
    update = {"demand": None, "planning": planning, "uncertain": ranges}
    return dataclasses.replace(workload, spec=workload.spec.model_copy(update=update))


def _replaced(
    workload: Found[Workload] | None, given: GivenOptions, replacing: GpusToReplace, *, simulated: bool
) -> Replaced:
    """The most that the GPUs to replace serve, as in `estimate --gpus N`. Raises InputError if they serve nothing."""
    from sizing.answers.compare import most_served
    from sizing.question.ask import question_of, with_confidence
    from sizing.question.options import options_of
    from sizing.report.compare import replaced

    options = options_of(given.with_(gpu=replacing.name, gpus=replacing.gpus, headroom=None))
    with placed(lambda fault: dataclasses.replace(fault, field="--replace")):  # everything else was checked before
        asked = question_of(workload, options, pooled=True)
    outcome = most_served(with_confidence(asked, options), simulated=simulated)
    served = replaced(outcome, replacing.gpus)
    if served is None:
        from sizing.report.parts.limits import unmet

        reason = unmet(outcome).detail
        message = f"{replacing.gpus} x {asked.space.gpu_types[0].name} serve nothing within the limits: {reason}"
        raise InputError(message, field="--replace")
    return served
