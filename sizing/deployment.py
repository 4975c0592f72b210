"""One model on one layout of one GPU type, resolved: what `memory` and `step` look at without a demand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing import memory, precision
from sizing.architecture import Layout
from sizing.candidates import refusals, resolve_settings
from sizing.kernels import Kernels
from sizing.memory import MemoryUse
from sizing.precision import PrecisionPlan
from sizing.request import Data, GpuOption, Request
from sizing.specs.engine import EngineSettings


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request for one layout, with settings, precision plan and memory.

    `refused` says why hardware or engine won't run it; `notes` what the model's name says, for the assumptions.
    """

    request: Request
    option: GpuOption
    layout: Layout
    settings: EngineSettings
    plan: PrecisionPlan
    memory: MemoryUse
    refused: str | None
    data: Data
    notes: tuple[str, ...] = ()

    def longest_that_fits(self) -> int:
        """Return the longest sequence that alone fits the pool."""
        return memory.longest_that_fits(
            self.request.model,
            self.option.gpu,
            self.layout,
            self.plan,
            self.settings,
            cuda_graphs_gib=self.request.serving.cuda_graphs_gib,
            extras=self.request.extras,
        )

    def kernels(self) -> Kernels:
        """Return the timing constants of this deployment."""
        return Kernels(
            self.option.gpu,
            self.data.assumptions,
            self.data.borrowed,
            self.request.engine.name,
            self.settings,
            self.plan,
            self.request.extras,
        )


def resolve(
    request: Request,
    option: GpuOption,
    layout: Layout,
    precision_name: str | None,
    data: Data,
    *,
    notes: tuple[str, ...] = (),
) -> Resolved:
    """Resolve one layout. What hardware or engine refuse is reported, not raised: the sizes are still worth seeing."""
    resolved = resolve_settings(request, option.gpu, layout)
    request = replace(request, extras=request.extras.on(layout.dp, resolved.block_tokens))
    plan = precision.plan(
        request.model,
        option.gpu,
        resolved,
        data.formats,
        precision=precision_name,
        kv_precision=request.kv_precision,
        extras=request.extras,
    )
    refused = "; ".join(detail for _, detail in refusals(request, option.gpu, layout, resolved, plan)) or None
    used = memory.use(
        request.model,
        option.gpu,
        layout,
        plan,
        resolved,
        max_model_len=request.max_model_len,
        cuda_graphs_gib=request.serving.cuda_graphs_gib,
        extras=request.extras,
    )
    return Resolved(request, option, layout, resolved, plan, used, refused, data, notes)
