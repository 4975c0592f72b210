"""The `inputs` of a document about one layout, and the assumptions that it rests on."""

from __future__ import annotations

from typing import Any

from sizing.replica.replica import Replica, Resolved
from sizing.report.talks import conversation


def candidate_of(resolved: Resolved) -> Replica:
    """Return the layout as a candidate, the form in which assumptions are listed."""
    return Replica(
        resolved.gpu_type,
        resolved.plan.weight_format,
        resolved.layout,
        resolved.plan,
        resolved.settings,
        resolved.memory,
    )


def inputs(resolved: Resolved) -> dict[str, Any]:
    """Return the resolved inputs of one layout."""
    request, plan, settings, layout = resolved.question, resolved.plan, resolved.settings, resolved.layout
    return {
        "model": request.service.model.name,
        "gpu": resolved.gpu_type.gpu.name,
        "gpu_id": resolved.gpu_type.id,
        "engine": request.service.engine.name,
        "engine_title": request.service.engine.title,
        "engine_version": request.service.engine_version,
        "weight_precision": plan.weight_format,
        "kv_precision": plan.kv_format,
        "activation_precision": plan.activation,
        "layout": str(layout),
        "tp": layout.tp,
        "pp": layout.pp,
        "ep": layout.ep,
        "dp": layout.dp,
        "cp": layout.cp,
        "dcp": layout.dcp,
        "task": request.service.task,
        "max_model_len": request.service.max_model_len,
        "memory_fraction": settings.memory_fraction or resolved.memory.budget_gib / resolved.memory.visible_gib,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "cuda_graphs_gib": resolved.memory.cuda_graphs_gib,
        "optimisations": request.service.optimisations.asked(),
        **conversation(request, placed=True),
    }
