"""The `inputs` of every document: everything resolved, defaults too, so that a result can be reproduced from itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sizing.question import demand as demands
from sizing.question.demand import Habits
from sizing.question.question import GpuType, Question
from sizing.replica.replica import Replica
from sizing.report.talks import conversation
from sizing.specs.units import MILLI


def inputs(question: Question, chosen: Replica | None) -> dict[str, Any]:
    """Return the resolved inputs; what depends on the chosen layout is that layout's, null where none was found."""
    origin, workload, gpu_types = question.origin, question.origin.workload, question.space.gpu_types
    return {
        "workload": origin.workload_name,
        "model": question.service.model.name,
        "model_id": origin.model_id,
        "model_asked": origin.model_matched_from or origin.model_id,
        "gpu": _chosen_gpu(gpu_types, chosen),
        "gpus_considered": [gpu_type.name for gpu_type in gpu_types],
        "gpu_ids": [gpu_type.id for gpu_type in gpu_types],
        "gpu_asked": dict(origin.gpus_matched_from),
        "engine": question.service.engine.name,
        "engine_title": question.service.engine.title,
        "engine_version": question.service.engine_version,
        "weight_precision": _chosen_precision(question, chosen),
        "kv_precision": chosen.plan.kv_format if chosen else question.service.kv_precision,
        "activation_precision": chosen.plan.activation if chosen else question.service.model.activation_precision,
        "isl": question.service.isl,
        "task": question.service.task,
        "osl": question.service.output_tokens,
        "isl_max": workload.tokens.isl_max or question.service.isl,
        "osl_max": workload.tokens.osl_max or question.service.output_tokens,
        "max_model_len": question.service.max_model_len,
        "mode": workload.mode,
        "demand": demand(question),
        "limits": limits(question),
        "gpu_budget": question.rules.gpu_budget,
        "objective": question.rules.objective,
        "max_utilisation": question.target.max_utilisation,
        "headroom": question.rules.headroom,
        "serving": serving(question, chosen),
        "optimisations": question.service.optimisations.asked(),
        **conversation(question, placed=chosen is not None),
    }


def _chosen_gpu(gpu_types: Sequence[GpuType], chosen: Replica | None) -> str | None:
    """Return the GPU type of the answer; without one, the only type considered, or None of several."""
    if chosen is not None:
        return chosen.gpu_type.name
    return gpu_types[0].name if len(gpu_types) == 1 else None


def _chosen_precision(question: Question, chosen: Replica | None) -> str:
    if chosen is not None:
        return chosen.plan.weight_format
    return ", ".join(name or question.service.model.quantisation.precision for name in question.space.precisions)


def demand(question: Question) -> dict[str, Any]:
    """Return the demand: the rate or concurrency to serve, what it came from, and the steps from there."""
    stated, found = question.origin.workload.demand, question.target.demanded
    user = habits(question)
    return {
        "requests_per_s": question.target.requests_per_s,
        "concurrency": question.target.concurrency,
        "daily_active_users": stated.daily_active_users if stated else None,
        "requests_per_user_per_day": user.requests_per_user_per_day,
        "active_hours": user.active_hours,
        "peak_to_mean": user.peak_to_mean,
        "poisson_percentile": user.poisson_percentile,
        "profile": found.shape.name if found is not None and found.shape is not None else None,
        "kind": found.kind if found is not None else None,
        "stated": stated.model_dump(exclude_none=True) if stated else None,
        "ranges": {name: span.model_dump() for name, span in question.origin.workload.uncertain.items()},
        "mean_requests_per_s": found.mean_per_s if found is not None else None,
        "steps": [step._asdict() for step in found.steps] if found is not None else [],
    }


def habits(question: Question) -> Habits:
    """Return what users do, of whom a rate would be."""
    origin = question.origin
    return question.target.habits or demands.habits(origin.workload.demand, origin.workload.planning, origin.defaults)


def limits(question: Question) -> dict[str, Any]:
    """Return the limits in ms with the statistic that they bound; null where none is set."""
    found: dict[str, Any] = {}
    for name in ("ttft", "itl", "e2e"):
        limit = getattr(question.target.limits, name)
        found[f"{name}_ms"] = None if limit is None else {"statistic": limit.statistic, "ms": limit.seconds / MILLI}
    return found


def serving(question: Question, chosen: Replica | None) -> dict[str, Any]:
    """Return the engine settings that matter for the answer, as asked or as the engine version defaults."""
    asked = question.service.serving.model_dump()
    if chosen is None:
        return asked
    resolved = chosen.settings
    return {
        **asked,
        "tp": chosen.layout.tp,
        "pp": chosen.layout.pp,
        "ep": chosen.layout.ep,
        "dp": chosen.layout.dp,
        "cp": chosen.layout.cp,
        "dcp": chosen.layout.dcp,
        "max_model_len": question.service.max_model_len,
        "memory_fraction": resolved.memory_fraction or chosen.memory.budget_gib / chosen.memory.visible_gib,
        "max_num_seqs": resolved.max_num_seqs,
        "max_num_batched_tokens": resolved.max_num_batched_tokens,
        "cuda_graphs_gib": chosen.memory.cuda_graphs_gib,
        "chunked_prefill": resolved.chunked_prefill,
        "prefix_caching": resolved.prefix_caching,
    }
