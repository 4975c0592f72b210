"""`llmsize check`: existing deployments against demand, limits and policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.cli.options import FORMAT_OPTIONS, VERIFY_OPTIONS, takes
from sizing.question.options import (
    DEMAND_OPTIONS,
    LIMIT_OPTIONS,
    OPTIMISATION_OPTIONS,
    PEAK_OPTIONS,
    PLANNING_OPTIONS,
    SET_OPTIONS,
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


@takes((*CHECK_OPTIONS, *OUTPUTS, *VERIFY_OPTIONS))
def command(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Files of the deployment: manifests, Helm values, scripts or a deploy.yaml; or a command line in quotes."
        ),
    ],
    **values: Any,
) -> int:
    """Check a deployment against a demand, limits and a policy.

    The deployment is read from its own files: commands of vLLM, SGLang or TensorRT-LLM, alone or in manifests.

    Exit codes: 0 passes, 1 fails, 2 bad input.
    """
    from sizing.cli.output import FORMATS, chosen_format
    from sizing.launch.check import check as checked_of
    from sizing.question.configuration import of_several, only_settings, without_settings
    from sizing.question.options import options_of
    from sizing.specs.errors import Part, check
    from sizing.specs.launch import Policy

    # The demand and its limits are those of the workload. Settings of the policy give way to the policy of a file.
    values = without_settings(values, [*(option.name for option in ASKED_OPTIONS), *of_several(values, "gpu")])
    standing = Part(lambda: _policy(only_settings(values)))
    values = without_settings(values, [option.name for option in POLICY_OPTIONS])
    output = Part(lambda: chosen_format(values, (*FORMATS, *CI_FORMATS)))
    policy = Part(lambda: _policy(values))
    filled = Part(lambda: _filled(values))
    baseline = Part(lambda: _baseline(values["baseline"]))
    options = options_of(CHECK_OPTIONS, {**values, "gpu": None, "model": None, "engine": None, "confidence": None})

    def found() -> tuple[Checked, ...]:
        return checked_of(
            *files,
            demand=values["demand"],
            policy=Policy() if policy.faults else policy.value,
            standing=Policy() if standing.faults else standing.value,
            filled=filled.value,
            options=options,
            simulated=not values["no_verify"],
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


def _policy(values: Mapping[str, Any]) -> Policy:
    """The policy of the options. Raises InputError with each invalid option."""
    from sizing.catalog.files import checked
    from sizing.catalog.yaml import scalar
    from sizing.specs.launch import Policy

    flags = {option.name: option.flags[0] for option in POLICY_OPTIONS}
    given = {name: values[name] for name in flags if values.get(name) is not None}
    stated = {name: scalar(value) if isinstance(value, str) else value for name, value in given.items()}
    return checked(Policy, stated, lambda path: flags[str(path[0])])


def _filled(values: Mapping[str, Any]) -> UserFacts:
    from sizing.launch.identity import UserFacts
    from sizing.question.options import CONFIGURED
    from sizing.specs.errors import positive
    from sizing.specs.units import comma_separated

    named = comma_separated(values["ignore_flags"] or "")
    flags = frozenset(f"--{name.lstrip('-').replace('_', '-')}" for name in named)
    said = (values["model"], values["gpu"], values["engine"], positive(values["replicas"], "--replicas"))
    return UserFacts(*said, flags, frozenset(values.get(CONFIGURED, ())))


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
