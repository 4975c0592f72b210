"""Checks existing deployments against demand, limits and policy. Each rule gives a finding."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from sizing.answers.check import held
from sizing.answers.deployment import warning_of
from sizing.catalog.models import FoundModel, load_model, parsed
from sizing.catalog.profiles import load_engine, load_gpu
from sizing.catalog.shelf import Found, only
from sizing.catalog.workloads import override
from sizing.formats.words import number, number_down, of_limit, percent, plural
from sizing.formats.words import stated as in_digits
from sizing.launch.as_question import DEPLOYED, DRAFTS, check_drafting, deployed_question, deployments
from sizing.launch.existing import Existing, existing
from sizing.launch.flags import flags_of
from sizing.launch.identity import Filled
from sizing.launch.policy import needs_of, of_policy
from sizing.launch.terms import layout_of
from sizing.launch.verdict import Checked, CheckFinding, fills, finding
from sizing.question.ask import extras_of, with_images
from sizing.question.names import workload_at
from sizing.question.options import SET_OPTIONS, Options, options_of
from sizing.question.question import Question, load_data
from sizing.replica.replica import Refusal, candidates
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.errors import Fault, InputError, Part
from sizing.specs.errors import check as check_parts
from sizing.specs.launch import Launched, Policy
from sizing.specs.model import Model, NameRules
from sizing.specs.units import MILLI
from sizing.specs.workload import GENERATE, LATENCIES, Workload, latency_name

NO_POLICY, NOTHING_FILLED = Policy.model_construct(), Filled()
POOLING = "pooling"  # a task that generates nothing, whichever it is
EMBEDS = "embed"  # what a model that generates does where it is started for pooling
A_DEMAND = "a workload's file or name (llmsize workloads); or --isl, --osl and --rps, with limits as --ttft and --itl"
OF_OPTIONS = "options"  # the name of a workload that options alone state


def check(
    *files: str | os.PathLike[str],
    demand: str | os.PathLike[str] | None = None,
    policy: Policy = NO_POLICY,
    standing: Policy = NO_POLICY,
    filled: Filled = NOTHING_FILLED,
    options: Options | None = None,
    simulated: bool = True,
) -> tuple[Checked, ...]:
    """Check the deployments in files or command lines against a demand (a workload's file or name), its limits and a policy.

    `policy` is over a file's own policy, `standing` below it. `filled` has facts that the files do not state.

    Raises InputError with all faults, and for facts that nothing states.

    >>> from sizing.launch.identity import Filled
    >>> line = "vllm serve llama-3.1-70b -tp 4 --max-model-len 8192 --quantization fp8"
    >>> found, = check(line, demand="chat", filled=Filled(gpu="h100-sxm", replicas=1), simulated=False)
    >>> found.passed, found.gpus
    (False, 4)
    """
    read = [Part(partial(existing, str(file), filled)) for file in files]
    check_parts(*read)
    _check_ignored(filled, [each for found in read for each in found.value])
    stated = options_of(SET_OPTIONS, {}) if options is None else options
    groups = [group for found in read for group in deployments(found.value)]
    asked = [_demanded(group, None if demand is None else str(demand), stated) for group in groups]
    priced = stated._replace(fields={})
    return tuple(
        _checked(group, workload, _over(policy, _over(group[0].policy, standing)), priced, simulated)
        for group, workload in zip(groups, asked, strict=True)
    )


def _check_ignored(filled: Filled, found: Sequence[Existing]) -> None:
    """Raise InputError for ignored flags that no command has."""
    unused = filled.ignored.difference(*(each.passed for each in found))
    if unused:
        what = "is in no command, under this name"
        raise InputError(Fault(f"{flag}: {what}", field="--ignore-flags") for flag in sorted(unused))


def _over(stated: Policy, own: Policy) -> Policy:
    """The stated policy, with the file's policy for everything else."""
    return own.model_copy(update={name: value for name, value in stated if value is not None})


def _demanded(group: Sequence[Existing], demand: str | None, options: Options) -> Found[Workload]:
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
    group: tuple[Existing, ...], demanded: Found[Workload], policy: Policy, options: Options, simulated: bool
) -> Checked:
    first = group[0]
    each = ((part, demanded.spec) for part in group)
    before = [
        finding._replace(message=f"{part.launched.role}: {finding.message}") if len(group) > 1 else finding
        for part, asked in each
        for of in (_of_file, _of_demand)
        for finding in of(part, asked)
    ]
    checked = Checked(first.launched.name, group, None, None, tuple(before))
    if not checked.passed:
        return checked._replace(findings=(*before, *_of_layouts(group, demanded, options)))
    question = deployed_question(group, demanded, options)
    replicas, confidence = first.launched.replicas or 1, policy.confidence
    result = held(question, replicas, load_data(), simulate=simulated, confidence=confidence)
    group = (first._replace(assumed=(*first.assumed, *_acceptance(question), *_own_runs(group, question))), *group[1:])
    whole = checked._replace(parts=group, question=result.question, held=result)
    needs = needs_of(whole, policy)
    return whole._replace(findings=(*before, *_of_load(whole, needs), *of_policy(whole, policy, needs)))


def _acceptance(question: Question) -> Iterator[str]:
    """Yield the assumption that drafts are accepted as published, where nothing states how they are."""
    asked, runs = question.service.optimisations.speculative, question.service.extras.speculation
    if asked is not None and runs is not None and not asked.states_acceptance:
        shares = "/".join(f"{share:g}" for share in dict.fromkeys(runs.acceptance))
        yield f"drafted tokens are accepted at {shares}, as published; --set {DRAFTS}={asked.method}:{runs.tokens}@ACCEPTANCE states your own"


def _own_runs(group: Sequence[Existing], question: Question) -> Iterator[str]:
    """Yield the assumption that own runs hold for another version of the engine."""
    service, named = question.service, {part.launched.gpu for part in group}
    runs = [load_gpu(name).spec.own_runs for name in named if name is not None]
    said = [of.other_version(service.engine.title, service.engine_version) for of in runs if of is not None]
    yield from (f"own runs of {other}" for other in said if other is not None)


# --- findings ---------------------------------------------------------------------------------------------------------


def _of_file(part: Existing, demanded: Workload) -> Iterator[CheckFinding]:
    """Yield the findings that need no prediction: the model, lengths, GPUs and nodes, and repeated flags."""
    launched = part.launched
    served, asked = (load_model(name) for name in (launched.model, demanded.model))
    same = served.id == asked.id or served.spec == replace(asked.spec, name=served.spec.name)
    alike, words = not same or _may_be_alike(launched.model, demanded.model), served.spec.name
    if not same:
        takes = f"--set model={launched.model} takes this one"
        words = f"serves {words}, but the demand asks for {asked.spec.name}; {takes}"
    elif not alike:
        words = f"serves {launched.model}, and {demanded.model} is asked for: another checkpoint of the same sizes"
    yield finding(part, "model", same and alike, words, "model", level="error" if not same else "warning")
    yield from _of_task(part, demanded, served)
    if demanded.optimisations.images is not None and not (served.spec.vision or served.spec.vision_parameters):
        words = f"requests have images, and {served.spec.name} has no encoder for them"
        yield finding(part, "images", False, words, "model")
    longest, most = _longest(demanded, served.spec), launched.serving.max_model_len
    if most is not None:
        enough, positions = longest <= most, served.spec.max_position
        says = "hold the longest request" if enough else "are fewer than the longest request has"
        words = f"{most:,} tokens {says}, {longest:,}"
        if most > positions:  # engines refuse to start
            words = f"{most:,} tokens are more than the {positions:,} positions of {served.spec.name}"
        yield finding(part, "max_model_len", enough and most <= positions, words, "max_model_len")
    gpus = layout_of(launched).gpus
    yield from _of_gpus(part, gpus)
    node = load_gpu(launched.gpu).spec.datasheet.node.gpus if launched.gpu else gpus
    if part.nodes is not None and gpus > part.nodes * node:
        held = f"{plural(part.nodes, 'node')} of {node}, as usual servers have"
        words = f"a replica of {gpus} GPUs takes more than {held}"
        yield finding(part, "nodes", False, words, "nodes", "dp_local", "tp", level="warning")
    if part.clash is not None:
        level: Literal["warning", "error"] = "error" if part.cards else "warning"
        yield finding(part, "port", False, part.clash, "port", level=level)
    for stated in part.again:
        words = f"{stated.flag} contradicts what is stated before it: the last, {stated.value}, counts"
        yield CheckFinding("flags", "warning", words, part.file, stated.line)
    for stated, what in part.idle:
        words = f"{stated.flag} has no effect: {served.spec.name} has no {what}"
        yield CheckFinding("flags", "warning", words, part.file, stated.line)


def _longest(demanded: Workload, model: Model) -> int:
    """Tokens of the longest request, with those of its images."""
    try:
        return with_images(demanded, extras_of(demanded, model)).longest
    except InputError:  # told where the deployment becomes a question
        return demanded.longest


def _of_task(part: Existing, demanded: Workload, served: FoundModel) -> Iterator[CheckFinding]:
    """Yield the finding of a deployment that does another task than the demand's, or of which nothing says that it does it."""
    said, asked, fields = part.launched.task, demanded.task, ("convert", "task", "pooling")
    encoder, engine = served.spec.encoder, flags_of(load_engine(part.launched.serving.engine or "vllm")[0].id)
    does = said or (POOLING if encoder else GENERATE)
    vague = does == POOLING and demanded.pooled
    if does == GENERATE and said is None and asked == served.task and asked in engine.detects:
        words = f"no flag says that it does: {asked} is taken from files of the checkpoint, if it has them"
        yield finding(part, "task", False, words, *fields, level="warning")
    elif does != asked and not vague and not (asked == "score" and does != GENERATE):  # scores compare what others give
        words = f"is started to {does}" + ", as no flag says otherwise" * (said is None and not encoder)
        if does == POOLING:
            words = "pools the states of a prompt (embed, classify or score)"
        yield finding(part, "task", False, f"{words}, and {asked} is asked for", *fields)
    elif vague and asked == "classify" and not encoder and engine.states("convert"):
        words = f"no flag says that it classifies: a checkpoint that generates embeds without --convert {asked}"
        yield finding(part, "task", False, words, *fields, level="warning")


def _may_be_alike(one: str, other: str) -> bool:
    """Whether two names may mean the same weights, also in other precisions. A name that is no Hub id says too little to differ."""
    rules = only(NameRules)

    def trained(name: str) -> list[str]:
        first, *rest = parsed(name, rules).unquantised.split("-")
        words = rest if first in rules.prefixes and rest else (first, *rest)
        return [word for word in words if word not in rules.file_forms]

    ids = all(name.count("/") == 1 and not name.startswith((".", "/", "~")) for name in (one, other))
    return not ids or trained(one) == trained(other)


def _of_gpus(part: Existing, gpus: int) -> Iterator[CheckFinding]:
    """Yield the findings on the GPUs that a replica's containers reserve, and those that its command sees."""
    reserved, words = part.launched.reserved_gpus, f"a replica runs on {plural(gpus, 'GPU')}"
    if reserved is not None:
        seen = reserved if part.seen is None else min(part.seen, reserved)
        words += f", and its containers reserve {reserved}" * (reserved != gpus)
        words += f", of which its command sees {seen}" * (seen < reserved)
        level: Literal["warning", "error"] = "error" if min(seen, reserved) < gpus else "warning"
        yield finding(part, "gpus", reserved == seen == gpus, words, "gpus", "tp", level=level)
    elif part.whole:
        words += ", and its container takes all of its server"
        yield finding(part, "gpus", fills(part), words, "gpus", "tp", level="warning")
    if part.doubt is not None:
        yield finding(part, "gpus", False, f"{words}, and {part.doubt}", "tp", level="warning")


def _of_demand(part: Existing, demanded: Workload) -> Iterator[CheckFinding]:
    """Yield findings for features that the demand needs and the engine is started without."""
    has, asked = part.launched.lora, demanded.optimisations
    if asked.lora is not None:
        enough = has is not None and has.slots >= asked.lora.slots and has.rank >= asked.lora.rank
        words = f"{has or 'no'} adapters are held at once, {asked.lora} asked"
        yield finding(part, "lora", enough, words, "lora_slots", "lora_rank")
    if asked.prefix is not None and part.launched.serving.prefix_caching is False:
        words = "prefix caching is off, and the demand counts on what it finds"
        yield finding(part, "prefix_caching", False, words, "prefix_caching", "no_prefix_caching")


def _of_layouts(group: Sequence[Existing], demanded: Found[Workload], options: Options) -> Iterator[CheckFinding]:
    """Yield the finding of each deployment whose engine does not start, where another finding leaves no prediction."""
    for part in group:
        try:
            question = deployed_question((part,), demanded, options)
        except InputError:  # told where it becomes a question
            continue
        (gpu_type, *_), (precision, *_) = question.space.gpu_types, question.space.precisions
        found = next(candidates(question.service, gpu_type, precision, load_data()))
        if isinstance(found, Refusal):
            rule, *fields = REASONS.get(found.reason, NO_LAYOUT)
            yield finding(part, rule, False, found.detail, *fields)


# The rule and the causing fields for each reason why nothing is served.
REASONS = {"memory": ("memory", "memory_fraction", "max_model_len", "tp"), "capacity": ("demand", "replicas")}
NO_LAYOUT = ("layout", "tp")


BOUNDS = {
    "kv_cache": "the KV cache is full",
    "max_num_seqs": "the engine runs no more sequences at once",
    "link": "the links between the pools are full",
}


def _of_load(checked: Checked, needs: str) -> Iterator[CheckFinding]:
    """Yield the findings whether it starts, serves the demand, and keeps each limit; `needs` names the replicas that would do."""
    found, question, part = checked.held, checked.question, checked.parts[0]
    assert found is not None and question is not None
    if found.why is not None:
        rule, *fields = REASONS.get(found.reason or "", NO_LAYOUT)
        yield finding(part, rule, False, found.why, *fields)
        return
    yield finding(part, "layout", True, str(layout_of(part.launched)), "tp")
    yield from _of_memory(checked)
    enough = found.answer is not None and found.reason is None and (found.utilisation is None or found.utilisation <= 1)
    yield finding(part, "demand", enough, _served(checked) + needs * (not enough), "replicas")
    missed = False
    for name, limit in question.target.limits.stated.items():
        latency = None if found.answer is None else found.answer.latency_s(name)
        if latency:
            seconds = latency[limit.statistic]
            kept = seconds <= limit.seconds
            missed = missed or not kept
            words = f"{limit.statistic} {in_digits(seconds / MILLI)} ms, limit {in_digits(limit.seconds / MILLI)} ms"
            yield finding(part, name, kept, words + needs * (not kept), "replicas", "tp")
        elif found.answer is None and found.stable is not None:
            words = f"{limit.statistic} has no figure, as the queue grows without end; limit {in_digits(limit.seconds / MILLI)} ms"
            yield finding(part, name, False, words + needs, "replicas", "tp")
    if enough and not found.holds and not missed:
        yield finding(part, "stable", False, f"a simulation does not confirm it{needs}", "replicas")


def _of_memory(checked: Checked) -> Iterator[CheckFinding]:
    """Yield a warning for each pool whose engine may run out of memory as it starts."""
    found = checked.held
    size = None if found is None else found.answer or found.needed
    by_role = {part.launched.role: part for part in checked.parts}
    for pool in () if size is None else size.pools:
        warning = warning_of(pool.replica.memory)
        if warning is not None:
            part = by_role.get(pool.replica.service.phase, checked.parts[0])
            yield finding(part, "memory", False, warning, "memory_fraction", level="warning")


def _served(checked: Checked) -> str:
    """Write the demand and the most within the limits, in the unit of the demand."""
    found, question = checked.held, checked.question
    assert found is not None and question is not None
    target, most, used = question.target, found.most_requests_per_s, found.utilisation
    if most is None:
        return "the demand is not served"
    if target.amount is None or used is None:
        return f"serves at most {number_down(most)} requests/s within the limits"
    borne = most if target.unit == "requests/s" else target.amount / used
    binds = f", where {_bound(found.binding, question)}" if found.binding else ""
    grows = "" if found.stable is None else f"; above {_down(found.stable, question)}, the queue grows without end"
    extra = question.rules.headroom if found.reason == "capacity" else 0.0
    asked = f"{number(target.amount)} {target.unit}" + f" and {percent(extra)} headroom" * (extra > 0)
    most_words = f"{_down(borne, question)} within the limits{binds}"
    return f"{asked} asked, serves at most {most_words}: {of_limit(used)} used{grows}"


def _down(amount: float, question: Question) -> str:
    """Write an amount of the demand, rounded down; users and requests in flight are whole numbers."""
    slack = amount * (1 + ROUNDING_SLACK)
    return number_down(slack if question.target.unit == "requests/s" else math.floor(slack))


def _bound(binding: str, question: Question) -> str:
    """Write what keeps a deployment from serving more."""
    if binding in LATENCIES:
        return f"{latency_name(binding, single=question.service.osl == 1)} reaches its limit"
    if binding == "utilisation":
        return f"{percent(question.target.max_utilisation)} of the highest stable rate is used"
    return BOUNDS[binding]
