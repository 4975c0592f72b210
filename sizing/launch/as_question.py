"""A deployment that exists as a question: the demand, answered with exactly its layout and its settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sizing.catalog.models import load_model
from sizing.catalog.shelf import Found
from sizing.launch.existing import Existing
from sizing.launch.terms import layout_of
from sizing.model import architecture
from sizing.question.ask import question_of
from sizing.question.options import Options
from sizing.question.question import OF_A_POOL, Question
from sizing.specs.errors import Fault, InputError
from sizing.specs.launch import Launched
from sizing.specs.optimisations import Disaggregate, Optimisations, PoolLayout, Speculative
from sizing.specs.workload import Serving, Workload

# Workload fields that a deployment states itself. Of its drafts an option may add the acceptance, which no flag states.
DRAFTS = "optimisations.speculative"
DEPLOYED = ("gpu", "precision", "kv_precision", "serving", DRAFTS, "optimisations.lora", "optimisations.disaggregate")


def deployments(found: Sequence[Existing]) -> Iterator[tuple[Existing, ...]]:
    """Yield the deployments one by one, but a prefill and a decode pool together."""
    pools = {role: [each for each in found if each.launched.role == role] for role in ("prefill", "decode")}
    yield from ((each,) for each in found if each.launched.role == "whole")
    if not any(pools.values()):
        return
    if [len(each) for each in pools.values()] != [1, 1]:
        first = next(iter((*pools["prefill"], *pools["decode"])))
        counts = " and ".join(f"{len(each)} {role}" for role, each in pools.items())
        allowed = "one of each in a file"
        raise InputError(f"has {counts} pools", file=first.file, line=first.line("command"), allowed=allowed)
    prefill, decode = pools["prefill"][0], pools["decode"][0]
    yield (prefill, decode)


def deployed_question(group: tuple[Existing, ...], demanded: Found[Workload], options: Options) -> Question:
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


def _placed(fault: Fault, part: Existing) -> Fault:
    """The fault; a fault of the deployment gets the deployment's line, not that of the demand."""
    field = fault.field or ""
    if not any(f"{field}.".startswith(f"{own}.") for own in DEPLOYED):
        return fault
    allowed = fault.allowed
    if field == DRAFTS and allowed is not None:
        allowed = f"--set {DRAFTS}={allowed}"
    return replace(fault, file=part.file, line=part.line(field.rpartition(".")[2], "command"), allowed=allowed)


def _serving(launched: Launched, asked: Serving, experts: bool) -> Serving:
    """The deployment's settings with all sizes of its layout. Measured values, which are no flags, come from the demand."""
    layout = layout_of(launched)
    sizes = {name: getattr(layout, name) for name in ("tp", "pp", *(("dp", "ep") if experts else ()))}
    ranks = {} if experts else {"dp": None, "ep": None}
    measured = {name: getattr(asked, name) for name in ("cuda_graphs_gib", *(("expert_imbalance",) if experts else ()))}
    stated = {name: value for name, value in measured.items() if value is not None}
    return launched.serving.model_copy(update={**sizes, **ranks, **stated})


def _drafting(launched: Speculative | None, asked: Speculative | None) -> Speculative | None:
    """Speculative decoding as the engine runs it, with the acceptance of the demand if that states one for the same drafts."""
    if launched is None or asked is None or not launched.drafts_as(asked) or not asked.states_acceptance:
        return launched
    return asked.model_copy(update={"tokens": launched.tokens, "model": launched.model or asked.model})


def check_drafting(group: Sequence[Existing], asked: Speculative | None, flag: str) -> None:
    """Raise InputError for an option that states other drafts than the deployment starts: it states their acceptance alone."""
    for part in group:
        runs = part.launched.speculative
        if asked is not None and (runs is None or not runs.drafts_as(asked)):
            own = "starts no drafts" if runs is None else f"starts {runs}"
            line = part.line("spec_method", "spec_tokens", "command")
            what = f"{own}, and {flag} says {asked}"
            allowed = None if runs is None else f"{flag}={runs.method}:{runs.tokens}@ACCEPTANCE"
            raise InputError(what, file=part.file, line=line, field="speculative", allowed=allowed)


def _pool(launched: Launched) -> PoolLayout:
    sizes = {name: size for name in POOL_SIZES if (size := getattr(layout_of(launched), name)) > 1 or name == "tp"}
    own = {name: getattr(launched.serving, name) for name in OF_A_POOL}
    return PoolLayout(gpu=launched.gpu, replicas=launched.replicas, **own, **sizes)


POOL_SIZES = ("tp", "pp", "ep", "dp")
SIZED_APART = {"tp", "pp", "ep", "dp", "cp", "dcp", *OF_A_POOL}


def _check_alike(group: Sequence[Existing]) -> None:
    """Raise InputError if two pools differ in more than their layouts."""
    first, second = (part.launched for part in group)
    one, other = (part.serving.model_dump(exclude=SIZED_APART) for part in (first, second))
    unlike = [name for name in one if one[name] != other[name]]
    unlike += [name for name in ("model", "precision", "kv_precision") if getattr(first, name) != getattr(second, name)]
    if unlike:
        what = f"differs between the prefill and the decode pool: {', '.join(unlike)}"
        line, allowed = group[1].line(*unlike, "command"), "pools that differ in layout and GPU type alone"
        raise InputError(what, file=group[1].file, line=line, allowed=allowed)
