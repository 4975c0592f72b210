"""The `inputs` of a document about one layout, and the assumptions that it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sizing.model import memory
from sizing.model.architecture import Layout
from sizing.model.precision import PrecisionPlan
from sizing.question.question import Question
from sizing.replica import replica as replicas
from sizing.replica.kernels import Kernels
from sizing.replica.replica import Replica
from sizing.report.talks import conversation
from sizing.specs.data import Data
from sizing.specs.engine import EngineSettings
from sizing.specs.gpu import GpuType


@dataclass(frozen=True, slots=True)
class Resolved:
    """A question for one layout. `refusals` say why hardware or engine won't run it; `notes` what the model's name says."""

    question: Question
    replica: Replica
    refusals: tuple[tuple[str, str], ...]
    data: Data
    notes: tuple[str, ...] = ()

    @property
    def refused(self) -> str | None:
        """Why hardware or engine won't run the layout."""
        return "; ".join(detail for _, detail in self.refusals) or None

    @property
    def gpu_type(self) -> GpuType:
        """The GPU type of the replica."""
        return self.replica.gpu_type

    @property
    def layout(self) -> Layout:
        """The layout of the replica."""
        return self.replica.layout

    @property
    def settings(self) -> EngineSettings:
        """The settings of the replica's engine."""
        return self.replica.settings

    @property
    def plan(self) -> PrecisionPlan:
        """The formats of the replica."""
        return self.replica.plan

    @property
    def memory(self) -> memory.MemoryUse:
        """The memory of the replica."""
        return self.replica.memory

    def kernels(self) -> Kernels:
        """The timing constants of the replica."""
        return Kernels.of(self.replica, self.data)


def resolve(
    question: Question,
    gpu_type: GpuType,
    layout: Layout,
    precision_name: str | None,
    data: Data,
    *,
    notes: tuple[str, ...] = (),
) -> Resolved:
    """Resolve one layout. What hardware or engine refuse is reported, not raised: the sizes are still worth seeing."""
    replica, refused = replicas.unchecked(question.service, gpu_type, layout, precision_name, data)
    return Resolved(question.with_(extras=replica.service.extras), replica, refused, data, notes)


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
