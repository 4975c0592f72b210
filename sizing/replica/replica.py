"""Layouts of a replica on one GPU type: what the engine accepts and what fits, each refused one with its reason.

One model on one layout of one GPU type, resolved: what `memory` and `step` look at without a demand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sizing.model import architecture, memory, precision, settings
from sizing.model.architecture import Layout
from sizing.model.memory import MemoryUse
from sizing.model.precision import PrecisionPlan
from sizing.question.question import Data, GpuType, Question
from sizing.replica.kernels import Kernels
from sizing.specs.engine import EngineSettings
from sizing.specs.gpu import Gpu
from sizing.specs.units import GIB, MIB
from sizing.specs.workload import Defaults

# Settings of an engine that a workload may state.
GIVEN = ("memory_fraction", "max_num_seqs", "max_num_batched_tokens", "all2all_backend", "expert_imbalance")
SPLIT_REASONS = ("link", "split", "token_budget")  # the same at every deeper pipeline


@dataclass(frozen=True, slots=True)
class Replica:
    """One layout of one GPU type and precision that the engine accepts and whose weights and cache fit."""

    gpu_type: GpuType
    precision: str | None
    layout: Layout
    plan: PrecisionPlan
    settings: EngineSettings
    memory: MemoryUse


@dataclass(frozen=True, slots=True)
class Refusal:
    """A layout that won't do: a short reason, the detail in words, how far off it is (`shortfall`: 0.1 is 10 % over).

    `sized` is the layout with its memory, where the engine accepts it and only its size is the matter.
    """

    gpu_type: GpuType
    precision: str
    layout: Layout
    reason: str
    detail: str
    shortfall: float = math.inf
    sized: Replica | None = None


def splits(question: Question, gpu: Gpu, defaults: Defaults) -> Iterator[Layout]:
    """Yield the ways to split a layer (at pp 1): every tp within an island, expert parallelism on and off for MoE.

    Values given in `serving` are taken as they are. Context parallelism and groups over several nodes are for those who ask.
    """
    serving = question.service.serving
    most = defaults.max_gpus_per_replica
    given = Layout(dp=serving.dp or 1, cp=serving.cp or 1, dcp=serving.dcp or 1)
    widest = max(1, min(gpu.datasheet.island_gpus, most) // given.token_ranks)
    for tp in [serving.tp] if serving.tp else range(1, widest + 1):
        for ep in _expert_sizes(question, tp * given.token_ranks):
            yield replace(given, tp=tp, ep=ep)


def depths(question: Question, split: Layout, defaults: Defaults) -> Iterable[int]:
    """Return the pipeline depths to try for a split: the one given; 1 where tp is given; else all that the caps allow."""
    serving = question.service.serving
    if serving.pp:
        return (serving.pp,)
    if serving.tp:
        return (1,)
    return range(1, min(defaults.max_pp, max(1, defaults.max_gpus_per_replica // split.gpus)) + 1)


def _expert_sizes(question: Question, group: int) -> tuple[int, ...]:
    if question.service.serving.ep:
        return (question.service.serving.ep,)
    return (1, group) if group > 1 and architecture.is_moe(question.service.model) else (1,)


def deployment_of(question: Question, gpu: Gpu, layout: Layout) -> settings.Deployment:
    """Return what an engine's settings depend on. Engines compare with the total that nvidia-smi reports."""
    mem = gpu.datasheet.memory
    smi_gib = mem.nvidia_smi_mib * MIB / GIB if mem.nvidia_smi_mib else mem.cuda_visible_gib
    return settings.Deployment(
        gpu_name=gpu.name,
        architecture=gpu.architecture,
        memory_gib=smi_gib,
        tp=layout.tp,
        pp=layout.pp,
        attention=architecture.attention_class(question.service.model),
    )


def resolve_settings(question: Question, gpu: Gpu, layout: Layout) -> EngineSettings:
    """Return the engine's settings for a GPU and layout, the workload's own `serving` values over them."""
    deployment = deployment_of(question, gpu, layout)
    resolved = settings.resolve(question.service.engine, question.service.engine_version, deployment)
    if resolved.budget_covers_context:  # unchunked prompts: the budget is stretched to the longest of them
        stretched = max(resolved.max_num_batched_tokens, question.service.max_model_len)
        resolved = resolved.model_copy(update={"max_num_batched_tokens": stretched})
    if question.service.extras.speculation is not None:
        resolved = resolved.speculating()
    given = {name: value for name in GIVEN if (value := getattr(question.service.serving, name)) is not None}
    return resolved.model_copy(update=given) if given else resolved


def candidates(
    question: Question, gpu_type: GpuType, precision_name: str | None, data: Data
) -> Iterator[Replica | Refusal]:
    """Yield every layout of one GPU type and precision: as a candidate, or with the reason why not.

    A split that the engine refuses is refused at every pipeline depth, so it is yielded once. Depths are tried from
    shallow to deep; once one fits, only those up to twice its depth follow: deeper ones add bubbles and nothing else.
    """
    for split in splits(question, gpu_type.gpu, data.defaults):
        deepest = max(data.defaults.max_pp, question.service.serving.pp or 1)
        for pp in depths(question, split, data.defaults):
            if pp > deepest:
                break
            found = _candidate(question, gpu_type, precision_name, replace(split, pp=pp), data)
            yield found
            if isinstance(found, Replica):
                deepest = min(deepest, 2 * pp)
            elif found.reason in SPLIT_REASONS:
                break


def _candidate(
    question: Question, gpu_type: GpuType, precision_name: str | None, layout: Layout, data: Data
) -> Replica | Refusal:
    gpu, model = gpu_type.gpu, question.service.model
    resolved = resolve_settings(question, gpu, layout)
    plan = precision.plan(
        model,
        gpu,
        resolved,
        data.formats,
        precision=precision_name,
        kv_precision=question.service.kv_precision,
        extras=question.service.extras,
    )

    def no(reason: str, detail: str, shortfall: float = math.inf) -> Refusal:
        return Refusal(gpu_type, plan.weight_format, layout, reason, detail, shortfall)

    refused = next(refusals(question, gpu, layout, resolved, plan), None) or _unchunked(question, resolved)
    if refused is not None:
        return no(*refused)
    used = memory.use(
        model,
        gpu,
        layout,
        plan,
        resolved,
        max_model_len=question.service.max_model_len,
        cuda_graphs_gib=question.service.serving.cuda_graphs_gib,
        extras=question.service.extras,
    )
    return held(Replica(gpu_type, precision_name, layout, plan, resolved, used), question)


def held(sized: Replica, question: Question) -> Replica | Refusal:
    """Return a layout that the engine accepts if its memory holds the request's longest sequence, else why not."""
    used = sized.memory
    if used.fits:
        return sized
    detail = (
        f"needs {used.deficit_gib:,.1f} GiB more per GPU for weights and one sequence of "
        f"{question.service.max_model_len:,} tokens"
    )
    shortfall = used.deficit_gib / used.visible_gib
    return Refusal(sized.gpu_type, sized.plan.weight_format, sized.layout, "memory", detail, shortfall, sized)


def refusals(
    question: Question, gpu: Gpu, layout: Layout, resolved: EngineSettings, plan: PrecisionPlan
) -> Iterator[tuple[str, str]]:
    """Yield (reason, detail) of all that the hardware or the engine refuses in a layout, whatever the memory."""
    pruned = precision.sparsity_why_not(plan, gpu)
    if pruned:
        yield "sparsity", pruned
    if question.service.engine.vendors and gpu.vendor not in question.service.engine.vendors:
        yield (
            "engine",
            f"{question.service.engine.title} runs on GPUs of {' and '.join(question.service.engine.vendors)} alone",
        )
    for detail in _nodes_why_not(gpu, layout):
        yield "link", detail
    for asked, has, title in (
        (layout.cp, resolved.context_parallel, "context parallelism"),
        (layout.dcp, resolved.decode_context_parallel, "decode context parallelism"),
    ):
        if asked > 1 and not has:
            yield "engine", f"{question.service.engine.title} {question.service.engine_version} has no {title}"
    if layout.stage_gpus % layout.ep and architecture.is_moe(question.service.model):
        yield "split", f"EP{layout.ep} does not divide the {layout.stage_gpus} GPUs of a stage"
    split = architecture.split_why_not(
        question.service.model, layout, resolved, block=plan.block and resolved.fp8_block
    )
    if split:
        yield "split", split
    pipeline = architecture.pipeline_why_not(question.service.model, layout, resolved)
    if pipeline:
        yield "pipeline", pipeline


def _nodes_why_not(gpu: Gpu, layout: Layout) -> Iterator[str]:
    """Yield why a replica cannot be laid out over nodes: without a network, or with a group that is cut across nodes."""
    island = gpu.datasheet.island_gpus
    if layout.gpus > island and gpu.datasheet.node.inter_node_gbit_per_s_per_gpu is None:
        yield f"{layout.gpus} GPUs need a network between nodes, which the profile does not state"
    elif layout.stage_gpus > island and (layout.stage_gpus % island or (layout.tp % island and island % layout.tp)):
        yield (
            f"{layout.stage_gpus} GPUs of a stage do not fill whole nodes of {island}, each of which holds whole "
            f"groups of TP{layout.tp} or a part of one"
        )


def _unchunked(question: Question, resolved: EngineSettings) -> tuple[str, str] | None:
    """Return (reason, detail) where a prompt needs more tokens of a step than an engine that does not chunk has."""
    if (
        resolved.chunked_prefill
        or question.service.phase == "decode"
        or question.service.isl <= resolved.max_num_batched_tokens
    ):
        return None
    return (
        "token_budget",
        f"a prompt of {question.service.isl:,} tokens exceeds max_num_batched_tokens "
        f"{resolved.max_num_batched_tokens:,} and this engine does not chunk prefill by default; raise "
        "--max-num-batched-tokens",
    )


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request for one layout, with settings, precision plan and memory.

    `refused` says why hardware or engine won't run it; `notes` what the model's name says, for the assumptions.
    """

    question: Question
    gpu_type: GpuType
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
            self.question.service.model,
            self.gpu_type.gpu,
            self.layout,
            self.plan,
            self.settings,
            cuda_graphs_gib=self.question.service.serving.cuda_graphs_gib,
            extras=self.question.service.extras,
        )

    def kernels(self) -> Kernels:
        """Return the timing constants of this deployment."""
        return Kernels(
            self.gpu_type.gpu,
            self.data.assumptions,
            self.data.borrowed,
            self.question.service.engine.name,
            self.settings,
            self.plan,
            self.question.service.extras,
        )


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
    resolved = resolve_settings(question, gpu_type.gpu, layout)
    question = question.with_(extras=question.service.extras.on(layout.dp, resolved.block_tokens))
    plan = precision.plan(
        question.service.model,
        gpu_type.gpu,
        resolved,
        data.formats,
        precision=precision_name,
        kv_precision=question.service.kv_precision,
        extras=question.service.extras,
    )
    refused = "; ".join(detail for _, detail in refusals(question, gpu_type.gpu, layout, resolved, plan)) or None
    used = memory.use(
        question.service.model,
        gpu_type.gpu,
        layout,
        plan,
        resolved,
        max_model_len=question.service.max_model_len,
        cuda_graphs_gib=question.service.serving.cuda_graphs_gib,
        extras=question.service.extras,
    )
    return Resolved(question, gpu_type, layout, resolved, plan, used, refused, data, notes)
