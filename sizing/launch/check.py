"""Checks existing deployments against demand, limits and policy: each is a question with exactly its layout and settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sizing.answers.check import check_size
from sizing.answers.replay import minute_of
from sizing.catalog.models import load_model
from sizing.catalog.profiles import load_gpu
from sizing.catalog.shelf import Found
from sizing.catalog.workloads import override, trace_to_replay
from sizing.launch.deployment import FileDeployment, existing
from sizing.launch.findings import (
    NO_LAYOUT,
    POOLING,
    REASONS,
    Checked,
    CheckFinding,
    enough_replicas_words,
    finding,
    of_demand,
    of_file,
    of_load,
    of_policy,
    of_trace,
)
from sizing.launch.identity import UserFacts
from sizing.launch.terms import layout_of
from sizing.model import architecture
from sizing.question.ask import question_of
from sizing.question.names import workload_at
from sizing.question.options import SET_OPTIONS, GivenOptions, Options, options_of
from sizing.question.question import OF_A_POOL, Question
from sizing.replica.replica import Refusal, candidates
from sizing.specs.errors import Fault, InputError, Part
from sizing.specs.errors import check as check_parts
from sizing.specs.launch import Launched, Policy
from sizing.specs.optimisations import Disaggregate, Optimisations, PoolLayout, Speculative
from sizing.specs.workload import Serving, Workload

NO_POLICY, NOTHING_FILLED = Policy(), UserFacts()
EMBEDS = "embed"  # what a model that generates does where it is started for pooling
A_DEMAND = "a workload's file or name (llmsize workloads); or --isl, --osl and --rps, with limits as --ttft and --itl"
OF_OPTIONS = "options"  # the name of a workload that options alone state


def check(
    *files: str | os.PathLike[str],
    demand: str | os.PathLike[str] | None = None,
    policy: Policy = NO_POLICY,
    standing: Policy = NO_POLICY,
    filled: UserFacts = NOTHING_FILLED,
    options: Options | None = None,
    simulated: bool = True,
) -> tuple[Checked, ...]:
    """Check the deployments in files or command lines against a demand (a workload's file or name), its limits and a policy.

    `policy` is over a file's own policy, `standing` below it. `filled` has facts that the files do not state.

    Raises InputError with all faults, and for facts that nothing states.

    >>> from sizing.launch.identity import UserFacts
    >>> line = "vllm serve llama-3.1-70b -tp 4 --max-model-len 8192 --quantization fp8"
    >>> found, = check(line, demand="chat", filled=UserFacts(gpu="h100-sxm", replicas=1), simulated=False)
    >>> found.passed, found.gpus
    (False, 4)
    """
    read = [Part(partial(existing, str(file), filled)) for file in files]
    check_parts(*read)
    _check_ignored(filled, [each for found in read for each in found.value])
    stated = options_of(GivenOptions(SET_OPTIONS, {})) if options is None else options
    groups = [group for found in read for group in deployments(found.value)]
    asked = [_demanded(group, None if demand is None else str(demand), stated) for group in groups]
    priced = stated._replace(fields={})
    return tuple(
        _checked(group, workload, _over(policy, _over(group[0].policy, standing)), priced, simulated)
        for group, workload in zip(groups, asked, strict=True)
    )


def _check_ignored(filled: UserFacts, deployments: Sequence[FileDeployment]) -> None:
    """Raise InputError for ignored flags that no command has."""
    unused = filled.ignored.difference(*(each.passed for each in deployments))
    if unused:
        what = "is in no command, under this name"
        raise InputError(Fault(f"{flag}: {what}", field="--ignore-flags") for flag in sorted(unused))


def _over(stated: Policy, own: Policy) -> Policy:
    """The stated policy, with the file's policy for everything else."""
    return own.model_copy(
        update={name: value for name in Policy.model_fields if (value := getattr(stated, name)) is not None}
    )


def _demanded(group: Sequence[FileDeployment], demand: str | None, options: Options) -> Found[Workload]:
    """The workload whose demand a deployment must serve, with the fields that options set; without a name, of these alone.

    Raises InputError if nothing states a demand, and for fields that the deployment states.
    """
    name = demand or group[0].demand
    if name is None and not options.fields and not options.faults:
        raise InputError(Fault("is needed", field="--demand", allowed=A_DEMAND))
    fixed = [f"{field}." for field in DEPLOYED if field != DRAFTS]
    own = [path for path in options.fields if f"{path}.".startswith(tuple(fixed))]
    what, allowed = "is of the deployment, which its own file states", "fields of the demand"
    faults = [Fault(what, field=options.flags[path], allowed=allowed) for path in own]
    if faults or options.faults:
        raise InputError((*options.faults, *faults))
    found = None if name is None else workload_at(name)
    served = _stated_by(group[0].launched) if found is None else {}
    spec = override(None if found is None else found.spec, {**served, **options.fields}, options.flags)
    if flag := next((options.flags[path] for path in options.fields if path.startswith(DRAFTS)), None):
        check_drafting(group, spec.optimisations.speculative, flag)
    return Found(spec, OF_OPTIONS, Path()) if found is None else replace(found, spec=spec)


def _stated_by(launched: Launched) -> dict[str, str]:
    """The fields of a workload that a deployment itself states: its model, and the task if that is not to generate."""
    own, stated = load_model(launched.model).task, launched.task
    task = (own or EMBEDS) if stated == POOLING else stated or own
    return {"model": launched.model, **({} if task is None else {"task": task})}


# --- a deployment as a question ---------------------------------------------------------------------------------------


def _checked(
    group: tuple[FileDeployment, ...], demanded: Found[Workload], policy: Policy, options: Options, simulated: bool
) -> Checked:
    first = group[0]
    trace = None if len(group) > 1 else trace_to_replay(demanded.spec)
    minute = None if trace is None else minute_of(trace)
    if minute is not None:
        demanded = replace(demanded, spec=minute.as_workload(demanded.spec))
    each = ((part, demanded.spec) for part in group)
    before = [
        finding._replace(message=f"{part.launched.role}: {finding.message}") if len(group) > 1 else finding
        for part, asked in each
        for of in (of_file, of_demand)
        for finding in of(part, asked)
    ]
    checked = Checked(first.launched.name, group, None, None, tuple(before))
    if not checked.passed:
        return checked._replace(findings=(*before, *_of_layouts(group, demanded, options)))
    question = deployed_question(group, demanded, options)
    replicas, confidence = first.launched.replicas or 1, policy.confidence
    result = check_size(question, replicas, simulated=simulated, confidence=confidence, minute=minute)
    group = (first._replace(assumed=(*first.assumed, *_acceptance(question), *_own_runs(group, question))), *group[1:])
    whole = checked._replace(parts=group, question=result.question, held=result)
    needs = enough_replicas_words(whole, policy)
    return whole._replace(
        findings=(
            *before,
            *of_trace(whole, minute, simulated),
            *of_load(whole, needs),
            *of_policy(whole, policy, needs),
        )
    )


def _acceptance(question: Question) -> Iterator[str]:
    """Yield the assumption that drafts are accepted as published, where nothing states how they are."""
    asked, runs = question.service.optimisations.speculative, question.service.extras.speculation
    if asked is not None and runs is not None and not asked.states_acceptance:
        shares = "/".join(f"{share:g}" for share in dict.fromkeys(runs.acceptance))
        yield f"drafted tokens are accepted at {shares}, as published; --set {DRAFTS}={asked.method}:{runs.tokens}@ACCEPTANCE states your own"


def _own_runs(group: Sequence[FileDeployment], question: Question) -> Iterator[str]:
    """Yield the assumption that own runs hold for another version of the engine."""
    service, named = question.service, {part.launched.gpu for part in group}
    runs = [load_gpu(name).spec.own_runs for name in named if name is not None]
    said = [of.other_version(service.engine.title, service.engine_version) for of in runs if of is not None]
    yield from (f"own runs of {other}" for other in said if other is not None)


def _of_layouts(group: Sequence[FileDeployment], demanded: Found[Workload], options: Options) -> Iterator[CheckFinding]:
    """Yield the finding of each deployment whose engine does not start, where another finding leaves no prediction."""
    for part in group:
        try:
            question = deployed_question((part,), demanded, options)
        except InputError:  # told where it becomes a question
            continue
        (gpu_type, *_), (precision, *_) = question.space.gpu_types, question.space.precisions
        found = next(candidates(question.service, gpu_type, precision))
        if isinstance(found, Refusal):
            rule, *fields = REASONS.get(found.reason, NO_LAYOUT)
            yield finding(part, rule, False, found.detail, *fields)


# Workload fields that a deployment states itself. Of its drafts an option may add the acceptance, which no flag states.
DRAFTS = "optimisations.speculative"
DEPLOYED = ("gpu", "precision", "kv_precision", "serving", DRAFTS, "optimisations.lora", "optimisations.disaggregate")


def deployments(deployments: Sequence[FileDeployment]) -> Iterator[tuple[FileDeployment, ...]]:
    """Yield the deployments one by one, but a prefill and a decode pool together."""
    pools = {role: [each for each in deployments if each.launched.role == role] for role in ("prefill", "decode")}
    yield from ((each,) for each in deployments if each.launched.role == "whole")
    if not any(pools.values()):
        return
    if [len(each) for each in pools.values()] != [1, 1]:
        first = next(iter((*pools["prefill"], *pools["decode"])))
        counts = " and ".join(f"{len(each)} {role}" for role, each in pools.items())
        allowed = "one of each in a file"
        raise InputError(f"has {counts} pools", file=first.file, line=first.line("command"), allowed=allowed)
    prefill, decode = pools["prefill"][0], pools["decode"][0]
    yield (prefill, decode)


def deployed_question(group: tuple[FileDeployment, ...], demanded: Found[Workload], options: Options) -> Question:
    """The question of the demand with exactly this layout and these settings."""
    parts = [part.launched for part in group]
    served = parts[-1]  # the decode pool of two; pools differ only in what is sized apart
    if len(parts) > 1:
        _check_alike(group)
        of_each = dict.fromkeys(OF_A_POOL)  # each pool states its own below; what one states says nothing of the other
        served = served.model_copy(update={"serving": served.serving.model_copy(update=of_each)})
    found = load_model(served.model)
    asked = demanded.spec
    optimisations = asked.optimisations.model_copy(update={
        "speculative": _drafting(served.speculative, asked.optimisations.speculative),
        "lora": served.lora,
        "disaggregate": None if len(parts) == 1 else Disaggregate(**{part.role: _pool(part) for part in parts}),
    })  # fmt: skip
    workload = asked.model_copy(update={
        "model": served.model, "gpu": (served.gpu,), "gpus": None, "precision": served.precision or found.precision,
        "kv_precision": served.kv_precision, "serving": _serving(served, asked.serving, architecture.is_moe(found.spec)),
        "optimisations": optimisations if optimisations.asked() else Optimisations(),
    })  # fmt: skip
    try:
        return question_of(Found(workload, demanded.id, demanded.path), options, pooled=True)
    except InputError as error:
        raise InputError(_placed(fault, group[-1]) for fault in error.faults) from None


def _placed(fault: Fault, part: FileDeployment) -> Fault:
    """The fault; a fault of the deployment gets the deployment's line, not that of the demand."""
    field = fault.field or ""
    if not any(f"{field}.".startswith(f"{own}.") for own in DEPLOYED):
        return fault
    if field == DRAFTS and fault.allowed is not None:
        fault = replace(fault, allowed=None, remedy=f"use --set {DRAFTS}={fault.allowed}")
    return replace(fault, file=part.file, line=part.line(field.rpartition(".")[2], "command"))


def _serving(launched: Launched, serving: Serving, experts: bool) -> Serving:
    """The deployment's settings with all sizes of its layout. Measured values, which are no flags, come from the demand."""
    layout = layout_of(launched)
    sizes = {name: getattr(layout, name) for name in ("tp", "pp", *(("dp", "ep") if experts else ()))}
    ranks = {} if experts else {"dp": None, "ep": None}
    measured = {
        name: getattr(serving, name) for name in ("cuda_graphs_gib", *(("expert_imbalance",) if experts else ()))
    }
    stated = {name: value for name, value in measured.items() if value is not None}
    return launched.serving.model_copy(update={**sizes, **ranks, **stated})


def _drafting(launched: Speculative | None, speculative: Speculative | None) -> Speculative | None:
    """Speculative decoding as the engine runs it, with the acceptance of the demand if that states one for the same drafts."""
    if (
        launched is None
        or speculative is None
        or not launched.drafts_as(speculative)
        or not speculative.states_acceptance
    ):
        return launched
    return speculative.model_copy(update={"tokens": launched.tokens, "model": launched.model or speculative.model})


def check_drafting(group: Sequence[FileDeployment], speculative: Speculative | None, flag: str) -> None:
    """Raise InputError for an option that states other drafts than the deployment starts: it states their acceptance alone."""
    for part in group:
        runs = part.launched.speculative
        if speculative is not None and (runs is None or not runs.drafts_as(speculative)):
            own = "starts no drafts" if runs is None else f"starts {runs}"
            line = part.line("spec_method", "spec_tokens", "command")
            what = f"{own}, and {flag} says {speculative}"
            remedy = None if runs is None else f"use {flag}={runs.method}:{runs.tokens}@ACCEPTANCE"
            raise InputError(what, file=part.file, line=line, field="speculative", remedy=remedy)


def _pool(launched: Launched) -> PoolLayout:
    sizes = {name: size for name in POOL_SIZES if (size := getattr(layout_of(launched), name)) > 1 or name == "tp"}
    own = {name: getattr(launched.serving, name) for name in OF_A_POOL}
    return PoolLayout(gpu=launched.gpu, replicas=launched.replicas, **own, **sizes)


POOL_SIZES = ("tp", "pp", "ep", "dp")
SIZED_APART = {"tp", "pp", "ep", "dp", "cp", "dcp", *OF_A_POOL}


def _check_alike(group: Sequence[FileDeployment]) -> None:
    """Raise InputError if two pools differ in more than their layouts."""
    first, second = (part.launched for part in group)
    one, other = (part.serving.model_dump(exclude=SIZED_APART) for part in (first, second))
    unlike = [name for name in one if one[name] != other[name]]
    unlike += [name for name in ("model", "precision", "kv_precision") if getattr(first, name) != getattr(second, name)]
    if unlike:
        what = f"differs between the prefill and the decode pool: {', '.join(unlike)}"
        line, allowed = group[1].line(*unlike, "command"), "pools that differ in layout and GPU type alone"
        raise InputError(what, file=group[1].file, line=line, allowed=allowed)
