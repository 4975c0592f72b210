"""`llmsize check`: existing deployments against demand, limits and policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sizing.cli.options import FORMAT_OPTIONS, VERIFY_OPTIONS, takes
from sizing.question.options import (
    DEMAND_OPTIONS,
    LIMIT_OPTIONS,
    OPTIMISATION_OPTIONS,
    PEAK_OPTIONS,
    PLANNING_OPTIONS,
    SET_OPTIONS,
    GivenOptions,
    named,
    option_table,
    with_help,
    without,
)

if TYPE_CHECKING:
    from sizing.launch.findings import Checked
    from sizing.launch.identity import UserFacts
    from sizing.specs.errors import Part
    from sizing.specs.launch import Policy

FILLED_OPTIONS, POLICY_OPTIONS = option_table("deployment"), option_table("policy")
# The demand and its limits, in place of a workload or over it.
ASKED_OPTIONS = (
    *without(DEMAND_OPTIONS, "gpus"),
    *named(OPTIMISATION_OPTIONS, "think_time", "images"),
    *PEAK_OPTIONS,
    *LIMIT_OPTIONS,
)
DEMAND_FILE, BASELINE = option_table("check")
POLICIES = {option.name: option.flags[0] for option in POLICY_OPTIONS}  # the options of a policy with their spellings
CHECK_OPTIONS = (
    DEMAND_FILE,
    *FILLED_OPTIONS,
    *ASKED_OPTIONS,
    *POLICY_OPTIONS,
    *SET_OPTIONS,
    *named(PLANNING_OPTIONS, "price", "provider"),
    BASELINE,
)
CI_FORMATS = ("github", "junit", "sarif")
OUTPUTS = with_help(FORMAT_OPTIONS, "check")


class CheckOptions(NamedTuple):
    """The options of the command itself, and what the files of a deployment do not say."""

    demand: str | None
    baseline: str | None
    no_verify: bool
    model: str | None
    gpu: str | None
    engine: str | None
    replicas: int | None
    ignore_flags: str | None


@takes((*CHECK_OPTIONS, *OUTPUTS, *VERIFY_OPTIONS))
def command(
    given: GivenOptions,
    files: Annotated[
        list[str],
        typer.Argument(
            help="Files of the deployment: manifests, Helm values, scripts or a deploy.yaml; or a command line in quotes."
        ),
    ],
) -> int:
    """Check a deployment against a demand, limits and a policy.

    The deployment is read from its own files: commands of vLLM, SGLang or TensorRT-LLM, alone or in manifests.

    Exit codes: 0 passes, 1 fails, 2 bad input.
    """
    from sizing.cli.output import FORMATS, chosen_format
    from sizing.launch.check import check as checked_of
    from sizing.question.configuration import of_several
    from sizing.question.options import options_of
    from sizing.specs.errors import Part, check
    from sizing.specs.launch import Policy

    # The demand and its limits are those of the workload. Settings of the policy give way to the policy of a file.
    given = given.without_settings([*(option.name for option in ASKED_OPTIONS), *of_several(given, "gpu")])
    standing = Part(lambda: _policy(given, given.settings))
    given = given.without_settings(POLICIES)
    own, output = given.read(CheckOptions), Part(lambda: chosen_format(given, (*FORMATS, *CI_FORMATS)))
    policy = Part(lambda: _policy(given, POLICIES))
    filled = Part(lambda: _filled(own, given.settings))
    baseline = Part(lambda: _baseline(own.baseline))
    options = options_of(given.without(("gpu", "model", "engine", "confidence")))

    def found() -> tuple[Checked, ...]:
        return checked_of(
            *files,
            demand=own.demand,
            policy=Policy() if policy.faults else policy.value,
            standing=Policy() if standing.faults else standing.value,
            filled=filled.value,
            options=options,
            simulated=not own.no_verify,
        )

    checked = Part(found)
    if output.faults or output.value not in CI_FORMATS or not checked.faults:
        check(output, policy, standing, filled, baseline, checked)
    return _show(checked, output.value, baseline)


def _show(checked: Part[tuple[Checked, ...]], output: str, baseline: Part[Mapping[str, Any] | None]) -> int:
    """Print the findings. The exit code is 1 if one of them fails."""
    from dataclasses import replace

    from sizing.catalog.prices import today
    from sizing.cli.output import print_text, write
    from sizing.formats.ci import WRITERS, remarks_of
    from sizing.launch.deployment import COMMAND
    from sizing.report.check import document, record, remarks
    from sizing.specs.errors import check

    if checked.faults:  # faults of the input itself also become annotations
        places = (None if fault.file == COMMAND else fault.file for fault in checked.faults)
        wrong = remarks_of(replace(fault, file=file) for fault, file in zip(checked.faults, places, strict=True))
        print_text(WRITERS[output](wrong, today()))
        check(checked)
    report = record(checked.value, baseline.value)
    if output in WRITERS:
        print_text(WRITERS[output](remarks(checked.value), today()))
    else:
        write(document(report), output)
    return 0 if report.passed else 1


def _policy(given: GivenOptions, names: Iterable[str]) -> Policy:
    """The policy of the options `names`. Raises InputError with each invalid option."""
    from sizing.catalog.files import checked
    from sizing.catalog.yaml import scalar
    from sizing.specs.launch import Policy

    values = {name: given.values[name] for name in POLICIES if name in names}
    stated = {name: scalar(value) if isinstance(value, str) else value for name, value in values.items()}
    return checked(Policy, stated, lambda path: POLICIES[str(path[0])])


def _filled(own: CheckOptions, settings: Iterable[str]) -> UserFacts:
    from sizing.launch.identity import UserFacts
    from sizing.specs.errors import positive
    from sizing.specs.units import comma_separated

    named = comma_separated(own.ignore_flags or "")
    flags = frozenset(f"--{name.lstrip('-').replace('_', '-')}" for name in named)
    return UserFacts(own.model, own.gpu, own.engine, positive(own.replicas, "--replicas"), flags, frozenset(settings))


def _baseline(path: str | None) -> Mapping[str, Any] | None:
    """The record of an earlier check. Raises InputError if the file is no such record."""
    from sizing.catalog.files import read_json
    from sizing.report.check import SCHEMA
    from sizing.specs.errors import InputError

    if path is None:
        return None
    found = read_json(path).data
    each = found.get("deployments")
    named = isinstance(each, list) and all(isinstance(one, dict) and "name" in one for one in each)
    if found.get("schema") != SCHEMA or not named:
        raise InputError("is no result of llmsize check", file=path, allowed="what `llmsize check --json` wrote")
    return found
