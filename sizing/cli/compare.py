"""`llmsize compare`: one demand on several GPU types and precisions, and the replacement of existing GPUs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.cli.estimate import to_size
from sizing.cli.options import FORMAT_OPTIONS, VERIFY_OPTIONS, MeasuredRows, WorkloadName, takes
from sizing.question.options import (
    QUESTION_OPTIONS,
    WORKLOAD_OPTIONS,
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
STAND_IN = {"rps": 1.0}  # a demand used only to validate the other options
_REPLACE = re.compile(r"\s*([0-9]{1,7})\s*[xX]\s*([^,]+?)\s*\Z")
OF_DEMANDS = "one of --rps, --users, --dau, --concurrency, --mean-rps (or demand: in the workload), or --replace for what GPUs serve now"
NO_DEMAND = Fault("there is no demand to compare for", field="demand", allowed=OF_DEMANDS)


@takes((*OWN_OPTIONS, *QUESTION_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS))
def command(workload: WorkloadName = None, measured: MeasuredRows = None, **values: Any) -> int:
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
    from sizing.question.configuration import without_settings
    from sizing.report.compare import document, record

    if measured is not None:
        from sizing.cli.measured import Added, print_from

        return print_from(measured, workload, values, Added(whole=True, sort=values["sort"]))
    if values["replace"] is not None:  # the replaced GPUs set the demand
        values = without_settings(values, group("OF_DEMAND"))
    asked = ask(workload, values)
    simulated, jobs = not values["no_verify"], min(values["jobs"] or cores(), len(candidates_of(asked.question)))
    each = partial(ordered, jobs=jobs)
    with Bar("Comparing") as bar:
        outcomes = compare(asked.question, sort=asked.sort, simulated=simulated, each=each, progress=bar)
    found = record(outcomes, asked.question, asked.sort, asked.replaced)
    write(document(found), asked.format)
    return 0 if found.feasible else 1


class Replacing(NamedTuple):
    """The GPUs to replace: their number and type."""

    gpus: int
    name: str


class Asking(NamedTuple):
    """The outcomes to compare, their order, and the output format."""

    question: Question
    sort: Aim
    replaced: Replaced | None
    format: str


def ask(workload: str | None, values: Mapping[str, Any]) -> Asking:
    """Resolve the question, and the load of the GPUs to replace. Raises InputError with all faults that it can find."""
    from sizing.cli.output import chosen_format
    from sizing.question.ask import question_of
    from sizing.question.names import workload_at
    from sizing.question.options import options_of
    from sizing.specs.errors import Part

    output, sort = Part(lambda: chosen_format(values)), Part(lambda: _sort(values))
    found = Part(lambda: None if workload is None else workload_at(workload))
    replacing = Part(lambda: _replacing(values))
    stated = Part(lambda: _check_demand(found.value, values, replacing.value))
    whose = workload if found.faults else found.value
    stands_in = replacing.faults or stated.faults or replacing.value is not None
    filled = {**values, **STAND_IN} if stands_in else values
    asked = question_of(
        whose, options_of(QUESTION_OPTIONS, filled), output, sort, found, replacing, stated, pooled=True
    )
    replaced = None
    if replacing.value is not None:
        rest = None if found.value is None else _without_demand(found.value)
        replaced = _replaced(rest, values, replacing.value)
        # The growth is that stated for this comparison.
        served = {"rps": replaced.requests_per_s, "headroom": values["headroom"] or "0"}
        asked = question_of(rest, options_of(QUESTION_OPTIONS, {**values, **served}), pooled=True)
    order = sort.value or asked.rules.objective
    return Asking(to_size(asked, values), order, replaced, output.value)


def _sort(values: Mapping[str, Any]) -> Aim | None:
    from sizing.cli.reader import Reader

    if values["sort"] is None:
        return None
    with Reader(values) as read:
        return read.chosen(values["sort"], SORTS, "--sort", "order")


def _replacing(values: Mapping[str, Any]) -> Replacing | None:
    """The GPUs to replace, or None. Raises InputError if they are misspelt, or if a demand is stated too."""
    from sizing.cli.reader import Reader
    from sizing.question.options import broken

    if values["replace"] is None:
        return None
    match = _REPLACE.match(values["replace"])
    replacing = Replacing(int(match[1]), match[2]) if match is not None else Replacing(0, "")
    with Reader(values, broken(("GPUs to replace",), WORKLOAD_OPTIONS, values)) as read:
        if sets_demand(values):
            read.fault("states a demand, and the GPUs of --replace say what it is", "--set")
        if replacing.gpus < 1:
            message = f"{values['replace']!r} is no number of GPUs of one type"
            read.fault(message, "--replace", "as 8xh100-sxm (llmsize gpus)")
    return replacing


def _check_demand(workload: Found[Workload] | None, values: Mapping[str, Any], replacing: Replacing | None) -> None:
    stated = any(values[name] is not None for name in DEMANDS) or sets_demand(values)
    if replacing is None and not stated and (workload is None or workload.spec.demand is None):
        raise InputError(NO_DEMAND)


def _without_demand(workload: Found[Workload]) -> Found[Workload]:
    """A workload without its demand and peak rules, which do not affect the most that GPUs serve."""
    planning = workload.spec.planning.model_copy(update={"poisson_percentile": None})
    ranges = {name: span for name, span in workload.spec.uncertain.items() if not name.startswith("demand.")}
    update = {"demand": None, "planning": planning, "uncertain": ranges}
    return dataclasses.replace(workload, spec=workload.spec.model_copy(update=update))


def _replaced(workload: Found[Workload] | None, values: Mapping[str, Any], replacing: Replacing) -> Replaced:
    """The most that the GPUs to replace serve, as in `estimate --gpus N`. Raises InputError if they serve nothing."""
    from sizing.answers.compare import most_served
    from sizing.question.ask import question_of
    from sizing.question.options import options_of
    from sizing.report.compare import replaced

    of_these = {**values, "gpu": replacing.name, "gpus": replacing.gpus, "headroom": None}
    with placed(lambda fault: dataclasses.replace(fault, field="--replace")):  # everything else was checked before
        asked = question_of(workload, options_of(QUESTION_OPTIONS, of_these), pooled=True)
    outcome = most_served(to_size(asked, values), simulated=not values["no_verify"])
    served = replaced(outcome, replacing.gpus)
    if served is None:
        from sizing.report.parts.limits import unmet

        reason = unmet(outcome).detail
        message = f"{replacing.gpus} x {asked.space.gpu_types[0].name} serve nothing within the limits: {reason}"
        raise InputError(message, field="--replace")
    return served
