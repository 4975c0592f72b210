"""From options to the document of `compare`: the demand, stated or what the GPUs to replace serve, and its candidates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sizing.catalog import workloads
from sizing.catalog.shelf import Found
from sizing.cli.estimate import answer, to_simulate, to_size
from sizing.cli.output import chosen_format
from sizing.cli.progress import Bar
from sizing.cli.reading import Reader
from sizing.cli.rules import broken
from sizing.cli.workers import cores, ordered
from sizing.question.ask import question_of
from sizing.question.fields import QUESTION_OPTIONS, WORKLOAD_OPTIONS, options_of
from sizing.question.question import Question, SeparatePools, load_data
from sizing.question.values import Part
from sizing.report import compare as report
from sizing.report.compare import Compare, Ranked, Replaced
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import GpuType
from sizing.specs.workload import Objective, Workload

SORTS: tuple[Objective, ...] = ("gpus", "cost", "energy")
DEMANDS = tuple(option.name for option in WORKLOAD_OPTIONS if (option.field or "").startswith("demand."))
STAND_IN = {"rps": 1.0}  # while nothing else is asked of the options but whether they are right
_REPLACE = re.compile(r"\s*([0-9]{1,7})\s*[xX]\s*([^,]+?)\s*\Z")
NO_DEMAND = Fault(
    "there is no demand to compare for",
    field="demand",
    allowed="one of --rps, --concurrency, --dau, --mean-rps (or demand: in the workload), or --replace for what GPUs serve now",
)


class Replacing(NamedTuple):
    """GPUs to replace: how many of which type."""

    gpus: int
    name: str


class Asking(NamedTuple):
    """What to compare, in which order, and how to write it."""

    question: Question
    values: Mapping[str, Any]
    sort: Objective
    replaced: Replaced | None
    format: str
    jobs: int


class Candidate(NamedTuple):
    """What is compared: one GPU type and precision, serving as one or in pools, which may name types of their own."""

    gpu_type: GpuType
    precision: str | None
    pools: SeparatePools | None = None


@dataclass(frozen=True)
class Candidates:
    """What a process does with one candidate: answers the question with this alone."""

    question: Question
    values: Mapping[str, Any]
    sort: Objective
    replaced: int | None

    def __call__(self, one: Candidate) -> Ranked:
        """Return the line of one candidate."""
        alone = self.question.with_(gpu_types=(one.gpu_type,), precisions=(one.precision,), pools=one.pools)
        request, data = to_size(alone, self.values), load_data()
        if one.pools is None:
            outcome = answer(request, data, to_simulate(alone, self.values))
        else:
            from sizing.cli.estimate import searched

            outcome = searched(request, data, to_simulate(alone, self.values))
        return report.ranked(outcome, self.sort, self.replaced)


def ask(workload: str | None, values: Mapping[str, Any]) -> Asking:
    """Resolve what is asked, and what the GPUs to replace serve. Raises InputError with all faults that can be known."""
    output, sort = Part(lambda: chosen_format(values)), Part(lambda: _sort(values))
    found = Part(lambda: None if workload is None else workloads.load_workload(workload))
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
        served = {
            "rps": replaced.requests_per_s,
            "headroom": values["headroom"] or "0",
        }  # growth, if any, as asked here
        asked = question_of(rest, options_of(QUESTION_OPTIONS, {**values, **served}), pooled=True)
    order = sort.value or asked.rules.objective
    return Asking(asked, values, order, replaced, output.value, values["jobs"] or cores())


def compared(asking: Asking) -> Compare:
    """Answer the question for every candidate, and return the document."""
    asked, replaced = asking.question, asking.replaced
    candidates = _candidates(asked)
    work = Candidates(asked, asking.values, asking.sort, replaced.gpus if replaced else None)
    lines: list[Ranked] = []
    with Bar("Comparing", len(candidates)) as bar:
        for line in ordered(work, candidates, min(asking.jobs, len(candidates))):
            lines.append(line)
            bar(len(lines))
    return report.record(lines, asked, asking.sort, replaced)


def _candidates(asked: Question) -> list[Candidate]:
    """Return each GPU type and precision, and with each the pools, once where these name their own types."""
    whole = [Candidate(option, name) for option in asked.space.gpu_types for name in asked.space.precisions]
    if asked.space.pools is None:
        return whole
    both = asked.space.pools.by_type(asked.space.gpu_types)
    return [
        *whole,
        *(Candidate(one.prefill.gpu_types[0], name, one) for one in both for name in asked.space.precisions),
    ]


def _sort(values: Mapping[str, Any]) -> Objective | None:
    if values["sort"] is None:
        return None
    read = Reader(values, [])
    found = read.chosen(values["sort"], SORTS, "--sort", "order")
    read.check()
    return next(known for known in SORTS if known == found)


def _replacing(values: Mapping[str, Any]) -> Replacing | None:
    """Return the GPUs to replace, None for none. Raises InputError where they are misspelt, or a demand is stated too."""
    if values["replace"] is None:
        return None
    read = Reader(values, [])
    read.faults.extend(broken(("GPUs to replace",), WORKLOAD_OPTIONS, values))
    match = _REPLACE.match(values["replace"])
    if match is None or int(match[1]) < 1:
        read.fault(
            f"{values['replace']!r} is no number of GPUs of one type", "--replace", "as 8xh100-sxm (llmsize gpus)"
        )
    read.check()
    assert match is not None
    return Replacing(int(match[1]), match[2])


def _check_demand(found: Found[Workload] | None, values: Mapping[str, Any], replacing: Replacing | None) -> None:
    stated = any(values[name] is not None for name in DEMANDS)
    if replacing is None and not stated and (found is None or found.spec.demand is None):
        raise InputError(NO_DEMAND)


def _without_demand(found: Found[Workload]) -> Found[Workload]:
    """Return a workload without its demand and what makes a peak of it: of what GPUs serve at most nothing is left to add."""
    planning = found.spec.planning.model_copy(update={"poisson_percentile": None})
    ranges = {name: span for name, span in found.spec.uncertain.items() if not name.startswith("demand.")}
    update = {"demand": None, "planning": planning, "uncertain": ranges}
    return replace(found, spec=found.spec.model_copy(update=update))


def _replaced(found: Found[Workload] | None, values: Mapping[str, Any], replacing: Replacing) -> Replaced:
    """Return what the GPUs to replace serve, as `estimate --gpus N` finds it. Raises InputError where that is nothing."""
    of_these = {**values, "gpu": replacing.name, "gpus": replacing.gpus, "headroom": None}
    try:
        asked = question_of(found, options_of(QUESTION_OPTIONS, of_these), pooled=True)  # what is there serves as one
    except InputError as error:  # all else was looked up before
        raise InputError([replace(fault, field="--replace") for fault in error.faults]) from None
    outcome = answer(to_size(asked, values), load_data(), to_simulate(asked, values))
    served = report.replaced(outcome, replacing.gpus)
    if served is None:
        from sizing.report.parts.limiting import unmet

        reason = unmet(outcome, ()).detail
        message = f"{replacing.gpus} x {asked.space.gpu_types[0].name} serve nothing within the limits: {reason}"
        raise InputError(Fault(message, field="--replace"))
    return served
