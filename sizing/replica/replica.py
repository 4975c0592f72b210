"""One engine instance: a service on one layout of one GPU type, with its memory and settings; or why it is refused.

`of` builds one layout. `candidates` builds the layouts that a service may have on a GPU type at one weight precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from sizing.catalog.profiles import card_of
from sizing.catalog.shelf import only
from sizing.model import architecture, memory, precision, settings
from sizing.model.architecture import Layout, Shard
from sizing.model.extras import Extras
from sizing.model.memory import MemoryUse
from sizing.model.precision import PrecisionPlan
from sizing.model.settings import Service
from sizing.specs.bands import Bands, MemoryKind, find
from sizing.specs.bisection import smallest
from sizing.specs.data import Formats
from sizing.specs.engine import EngineSettings
from sizing.specs.frozen import Frozen
from sizing.specs.gpu import Gpu, GpuType
from sizing.specs.model import Model
from sizing.specs.units import GIB, GIGA, MIB, missing_gib
from sizing.specs.workload import Defaults, Reach

# Fields of a workload's `serving` and the engine settings that they override.
ALIKE = (
    "memory_fraction",
    "max_num_seqs",
    "max_num_batched_tokens",
    "all2all_backend",
    "expert_imbalance",
    "prefix_caching",
)
GIVEN = {name: name for name in ALIKE} | {"pp_layers": "pp_remainder"}
SPLIT_REASONS = ("link", "split", "token_budget")  # the same at every deeper pipeline


class Replica(Frozen):
    """One engine instance: its service, layout, GPU type, settings, formats and memory.

    `precision` is the weight precision that was asked for; None means the checkpoint's own. The extras in `service`
    are those of this layout. `memory` is the memory of one GPU at the longest sequence.
    """

    service: Service
    gpu_type: GpuType
    precision: str | None
    layout: Layout
    settings: EngineSettings
    plan: PrecisionPlan
    memory: MemoryUse

    @property
    def shard(self) -> Shard:
        """What the GPUs of the replica hold and run."""
        return Shard(self.service.model, self.layout, self.settings, self.plan, self.service.extras)

    def rejected(self, reason: str, detail: str, shortfall: float = math.inf) -> Refusal:
        """The refusal of this layout."""
        return Refusal(self.gpu_type, self.plan.weight_format, self.layout, reason, detail, shortfall)

    def memory_at(self, tokens: int) -> MemoryUse:
        """Memory use when sequences have up to `tokens` tokens."""
        return memory.use(self.shard, self.gpu_type.gpu, tokens, self.service.serving)

    def concurrency_at(self, tokens: int) -> float:
        """Sequences of `tokens` tokens that the cache holds at once."""
        return memory.concurrency(self.shard, self.gpu_type.gpu, tokens, self.service.serving)

    def longest_that_fits(self) -> int:
        """Tokens of the longest single sequence that fits the cache, at most the model's maximum."""
        most = self.service.model.max_position
        if self.memory_at(most).fits:
            return most
        return smallest(lambda tokens: not self.memory_at(tokens).fits, 0, most) - 1


class Refusal(NamedTuple):
    """A layout that is not possible: a short reason, a detail in words, and how much is missing.

    `shortfall` is relative: 0.1 means 10 % over the limit. `sized` is the layout with its memory, if the engine accepts it
    and only its size is the problem. `weights_gib` are the weights on a GPU of a layout that is too slow.
    """

    gpu_type: GpuType
    precision: str
    layout: Layout
    reason: str
    detail: str
    shortfall: float = math.inf
    sized: Replica | None = None
    weights_gib: float | None = None


def of(service: Service, gpu_type: GpuType, layout: Layout, precision_name: str | None) -> Replica | Refusal:
    """The replica of a service on one layout, or its refusal by the hardware, by the engine or for lack of memory."""
    laid, resolved, plan = _resolved(service, gpu_type, layout, precision_name)
    refused = next(_refusals(laid, gpu_type.gpu, layout, resolved, plan), None) or _unchunked(laid, resolved)
    if refused is not None:
        return Refusal(gpu_type, plan.weight_format, layout, *refused)
    return fitting(started(laid_out(laid, gpu_type, precision_name, resolved, plan, layout)))


def unchecked(
    service: Service, gpu_type: GpuType, layout: Layout, precision_name: str | None
) -> tuple[Replica, tuple[tuple[str, str], ...]]:
    """(replica, refusals) of a service on one layout; the replica is built even if it is refused.

    A refusal by hardware or engine is (reason, detail).
    """
    laid, resolved, plan = _resolved(service, gpu_type, layout, precision_name)
    refused = tuple(_refusals(laid, gpu_type.gpu, layout, resolved, plan))
    return laid_out(laid, gpu_type, precision_name, resolved, plan, layout), refused


def cache_format(replica: Replica) -> str:
    """The format of the KV cache; `none` for a model that keeps no cache."""
    asked = replica.service.cache_precision
    return asked if asked == settings.NO_CACHE else replica.plan.kv_format


def memory_kind(replica: Replica) -> MemoryKind:
    """The class of the replica's memory, which distinguishes engine logs."""
    if architecture.has_states(replica.service.model):
        return "hybrid"
    return "pcie" if replica.layout.stage_gpus > 1 and not replica.gpu_type.gpu.datasheet.switched else "plain"


def with_extras(replica: Replica, extras: Extras) -> Replica:
    """The same replica with other extras; its memory is computed again."""
    other = replace(replica, service=replace(replica.service, extras=extras))
    return replace(other, memory=other.memory_at(other.service.max_model_len))


def fitting(replica: Replica) -> Replica | Refusal:
    """The replica if its memory holds its longest sequence; otherwise a refusal that says what is missing."""
    used, service = replica.memory, replica.service
    if used.fits and used.starts:
        return replica
    if used.fits:
        return Refusal(
            replica.gpu_type, replica.plan.weight_format, replica.layout, "states", unstarted(replica), sized=replica
        )
    detail = (
        f"needs {missing_gib(used.deficit_gib)} GiB more per GPU for weights and one sequence of "
        f"{service.max_model_len:,} tokens"
    )
    shortfall = used.deficit_gib / used.visible_gib
    return replica.rejected("memory", detail, shortfall)._replace(sized=replica)


def unstarted(replica: Replica) -> str:
    """Why an engine does not start with the given `max_num_seqs`, and the number of sequences with which it starts."""
    service, blocks = replica.service, replica.memory.most_num_seqs
    most, sure = most_sequences(replica), sure_sequences(replica)
    with_fewer = "it starts with no number of sequences" if not most else f"it starts with at most {most:,} sequences"
    surely = f", and surely with {sure:,}" if sure and sure != most else ""
    return (
        f"does not start: max_num_seqs {replica.settings.max_num_seqs:,} exceeds the cache's {blocks:,} blocks for recurrent "
        f"states, which {service.engine.title} {service.engine_version} checks; {with_fewer}{surely}"
    )


def candidates(
    service: Service, gpu_type: GpuType, precision_name: str | None, reach: Reach = "all"
) -> Iterator[Replica | Refusal]:
    """Yield the layouts of one GPU type and precision within a reach: as a replica, or as a refusal.

    If the engine refuses a split, it refuses it at every pipeline depth, so the split is yielded once. Depths are tried
    from shallow to deep. Once a depth fits, only depths up to twice as deep follow, because deeper ones only add bubbles.
    """
    for split in splits(service, gpu_type.gpu, reach):
        deepest = max(only(Defaults).max_pp, service.serving.pp or 1)
        for pp in depths(service, split, gpu_type.gpu, reach):
            if pp > deepest:
                break
            found = of(service, gpu_type, split._replace(pp=pp), precision_name)
            yield found
            if isinstance(found, Replica):
                deepest = min(deepest, 2 * pp)
            elif found.reason in SPLIT_REASONS:
                break


def splits(service: Service, gpu: Gpu, reach: Reach = "all") -> Iterator[Layout]:
    """Yield the ways to split a layer (at pp 1): tp within an island, MoE models with and without expert parallelism.

    Sizes are powers of two, which fill a node; `reach="all"` tries every size. Experts are also spread over attention-data
    ranks. Values given in `serving` are used unchanged. Context parallelism, and tensor parallelism across nodes, are used
    only if asked for.
    """
    serving = service.serving
    given = Layout(dp=serving.dp or 1, cp=serving.cp or 1, dcp=serving.dcp or 1)
    defaults = only(Defaults)
    node = min(gpu.datasheet.island_gpus, defaults.max_gpus_per_replica)
    widest = max(1, node // given.token_ranks)
    experts = architecture.is_moe(service.model)
    sizes = range(1, widest + 1) if reach == "all" else _doublings(widest)
    for tp in [serving.tp] if serving.tp else sizes:
        group = tp * given.token_ranks
        spread = (1, group) if group > 1 and experts else (1,)
        for ep in (serving.ep,) if serving.ep else spread:
            yield given._replace(tp=tp, ep=ep)
    if experts and not (serving.tp or serving.dp or serving.cp or serving.dcp):
        ranks = _attention_ranks(node, defaults.max_gpus_per_replica)
        yield from (layout for layout in ranks if serving.ep in (None, layout.ep))


def _attention_ranks(node: int, most: int) -> Iterator[Layout]:
    """Yield groups of attention-data ranks with experts spread over all GPUs: within a node, then over whole nodes."""
    for group in _doublings(node):
        yield from (Layout(tp=group // dp, dp=dp, ep=group) for dp in _doublings(group) if dp > 1)
    if node > 1:
        groups = (node * nodes for nodes in _doublings(most // node) if nodes > 1)
        yield from (Layout(dp=group, ep=group) for group in groups)


def _doublings(most: int) -> Iterator[int]:
    return (2**power for power in range(most.bit_length()))


def depths(service: Service, split: Layout, gpu: Gpu, reach: Reach = "all") -> Iterable[int]:
    """The pipeline depths to try for a split.

    A given depth is the only one. If only tp is given, or if `reach` is `usual`, the depth is 1. Otherwise the defaults
    limit the depth: powers of two within a node, or every depth where a stage fills whole nodes. `reach="all"` tries every
    depth.
    """
    serving = service.serving
    if serving.pp or serving.tp:
        return (serving.pp or 1,)
    if reach == "usual":
        return (1,)
    defaults = only(Defaults)
    deepest = min(defaults.max_pp, max(1, defaults.max_gpus_per_replica // split.gpus))
    node = gpu.datasheet.island_gpus
    if reach == "all" or split.gpus >= node:
        return range(1, deepest + 1)
    return (pp for pp in _doublings(deepest) if split.gpus * pp <= node)


def conditions_of(service: Service, gpu: Gpu, layout: Layout) -> settings.SettingsConditions:
    """The conditions on which an engine's settings depend.

    Engines compare with the total memory that nvidia-smi reports.
    """
    return _conditions_of(service.model, gpu, layout)


@lru_cache(maxsize=1024)
def _conditions_of(model: Model, gpu: Gpu, layout: Layout) -> settings.SettingsConditions:
    mem = gpu.datasheet.memory
    return settings.SettingsConditions(
        gpu_name=card_of(gpu),
        architecture=gpu.architecture,
        memory_gib=mem.nvidia_smi_mib * MIB / GIB if mem.nvidia_smi_mib else mem.cuda_visible_gib,
        tp=layout.tp,
        pp=layout.pp,
        attention=architecture.attention_class(model),
        switched=gpu.datasheet.switched,
        states=architecture.has_states(model),
        sparse=architecture.sparse_class(model),
        windows=architecture.windows_class(model),
        between_nodes=layout.stage_gpus > gpu.datasheet.island_gpus,
    )


def resolve_settings(service: Service, gpu: Gpu, layout: Layout) -> EngineSettings:
    """The engine's settings for a GPU and layout; values in the service's `serving` override them."""
    resolved = settings.resolve(service.engine, service.engine_version, conditions_of(service, gpu, layout))
    if _chunks_by_itself(service, resolved):
        resolved = resolved.chunked()
    elif resolved.budget_covers_context:  # unchunked prompts: the budget is stretched to the longest of them
        stretched = max(resolved.max_num_batched_tokens, service.max_model_len)
        resolved = resolved.model_copy(update={"max_num_batched_tokens": stretched})
    if service.extras.speculation is not None:
        resolved = resolved.speculating()
    if service.optimisations.prefix is not None and not resolved.prefix_caching:  # a hit rate implies a prefix cache
        resolved = resolved.model_copy(update={"prefix_caching": True})
    serving = service.serving
    if serving.mamba_full_memory_ratio is not None:
        states = resolved.states.model_copy(update={"share": serving.mamba_full_memory_ratio})
        resolved = resolved.model_copy(update={"states": states})
    if serving.enforce_eager:
        resolved = resolved.eager(len(service.model.layers))
    if serving.cpu_offload_gb is not None:
        bus = gpu.datasheet.node.pcie_gb_per_s_per_direction * GIGA
        ahead = serving.offload_backend == "prefetch"
        resolved = resolved.waiting(serving.cpu_offload_gb * GIB / bus, beside=ahead)
    given = {setting: value for name, setting in GIVEN.items() if (value := getattr(serving, name)) is not None}
    return resolved.model_copy(update=given) if given else resolved


def _chunks_by_itself(service: Service, resolved: EngineSettings) -> bool:
    """Whether a long context turns chunked prefill on. Adapters, images, windows and drafts keep it off."""
    long, extras = resolved.long_context, service.extras
    if long is None or service.max_model_len <= long.tokens or service.model.vision is not None:
        return False
    windowed = any(kind.mixer is not None and kind.mixer.kind == "sliding_window" for kind in service.model.kinds)
    return not windowed and extras.adapters is None and extras.speculation is None


def _resolved(
    service: Service, gpu_type: GpuType, layout: Layout, precision_name: str | None
) -> tuple[Service, EngineSettings, PrecisionPlan]:
    """The service with the extras of a layout, and its settings and formats on this layout.

    An engine that may leave more weights in host memory than the layers of a GPU have leaves all of these there, and starts.
    """
    resolved = resolve_settings(service, gpu_type.gpu, layout)
    if (model := architecture.attending(service.model, resolved)) is not service.model:
        service = replace(service, model=model)
    plan = precision.plan(
        service.model,
        gpu_type.gpu,
        resolved,
        only(Formats),
        precision=precision_name,
        kv_precision=service.kv_precision,
        extras=service.extras,
    )
    shard = Shard(service.model, layout, resolved, plan, service.extras)
    offloaded = service.serving.cpu_offload_gb
    if offloaded is not None and offloaded > (most := memory.most_offloaded_gib(shard)):
        service = replace(service, serving=service.serving.model_copy(update={"cpu_offload_gb": most}))
        resolved = resolve_settings(service, gpu_type.gpu, layout)
    extras = service.extras.on(layout.dp, memory.block_tokens(shard, shard.stages[0]))
    return service if extras is service.extras else replace(service, extras=extras), resolved, plan


def laid_out(
    service: Service,
    gpu_type: GpuType,
    precision_name: str | None,
    resolved: EngineSettings,
    plan: PrecisionPlan,
    layout: Layout,
) -> Replica:
    """The replica of a service with given settings and formats, and the resulting memory."""
    shard = Shard(service.model, layout, resolved, plan, service.extras)
    used = memory.use(shard, gpu_type.gpu, service.max_model_len, service.serving)
    made = Replica(service, gpu_type, precision_name, layout, resolved, plan, used)
    if used.most_num_seqs is None or resolved.states.rule != "split":
        return made
    return with_sequences(made, min(resolved.max_num_seqs, max(1, used.most_num_seqs)))


def with_sequences(replica: Replica, most: int) -> Replica:
    """The same replica with at most `most` sequences at once; its memory is computed again."""
    other = replace(replica, settings=replica.settings.model_copy(update={"max_num_seqs": most}))
    return replace(other, memory=other.memory_at(other.service.max_model_len))


def started(replica: Replica) -> Replica:
    """The same replica; if `max_num_seqs` was not given, it is lowered to the number with which the engine is sure to start."""
    sure = None if replica.service.serving.max_num_seqs is not None else sure_sequences(replica)
    return with_sequences(replica, sure) if sure and sure < replica.settings.max_num_seqs else replica


def sure_sequences(replica: Replica) -> int | None:
    """The most sequences with which an engine is sure to start that checks its blocks for recurrent states; None for others.

    It refuses one sequence too many, and names the blocks that it had with its own number. So this number is for the small
    end of the pools that engines log where those are predicted.
    """
    if not architecture.has_states(
        replica.service.model
    ):  # of all but a few models; the share is looked up for those alone
        return None
    share, blocks = _sure_share(replica), replica.memory.most_num_seqs
    if blocks is None or replica.settings.states.rule != "pages":
        return most_sequences(replica, share)
    return int(share * blocks)


def _sure_share(replica: Replica) -> float:
    """The small end of the pools that engines log, over the predicted pool; 1 where it is not known."""
    here = replica.service.situation(replica.gpu_type.gpu)._replace(memory=memory_kind(replica))
    band = find(only(Bands).bands, "kv_cache", here)
    return 1.0 if band is None else band.low


def most_sequences(replica: Replica, share: float = 1.0) -> int | None:
    """The most sequences that `share` of the blocks for recurrent states allows, 0 for none; None where none are checked.

    Fewer sequences leave more blocks, because activation and CUDA graphs shrink. So each number is tried with its own.
    """
    if replica.settings.states.rule != "pages" or not architecture.has_states(replica.service.model):
        return None

    def allowed(sequences: int) -> int | None:
        blocks = with_sequences(replica, sequences).memory.most_num_seqs
        return None if blocks is None else int(share * blocks)

    near = allowed(replica.settings.max_num_seqs) or 1
    most = allowed(near)
    if most is None:
        return None
    low, high = (0, near) if most < near else (near, most + 1)
    return smallest(lambda sequences: sequences > (allowed(sequences) or 0), low, high) - 1


def lowered_from(replica: Replica) -> int | None:
    """The engine's own `max_num_seqs`, if it was lowered so that the engine starts; None if it was not."""
    own = resolve_settings(replica.service, replica.gpu_type.gpu, replica.layout).max_num_seqs
    return own if replica.settings.max_num_seqs < own else None


def _refusals(
    service: Service, gpu: Gpu, layout: Layout, resolved: EngineSettings, plan: PrecisionPlan
) -> Iterator[tuple[str, str]]:
    """Yield (reason, detail) for everything that the hardware or the engine refuses in a layout, apart from memory."""
    engine, model = service.engine, service.model
    pruned = precision.sparsity_why_not(plan, gpu)
    if pruned:
        yield "sparsity", pruned
    if engine.vendors and gpu.vendor not in engine.vendors:
        yield "engine", f"{engine.title} runs on GPUs of {' and '.join(engine.vendors)} alone"
    if not resolved.runs_attention:
        yield "engine", f"{engine.title} {service.engine_version} does not run the attention of {model.name} yet"
    unrun = precision.kernels_why_not(plan, resolved, gpu)
    if unrun:
        yield "engine", f"{engine.title} {service.engine_version} has {unrun}"
    for detail in _nodes_why_not(gpu, layout):
        yield "link", detail
    for asked, has, title in (
        (layout.cp, resolved.context_parallel, "context parallelism"),
        (layout.dcp, resolved.decode_context_parallel, "decode context parallelism"),
    ):
        if asked > 1 and not has:
            yield "engine", f"{engine.title} {service.engine_version} has no {title}"
    all_gpus = "the one GPU" if layout.stage_gpus == 1 else f"all {layout.stage_gpus} GPUs"
    for size, ranks, what in (
        (layout.dp, resolved.attention_ranks, "splits attention"),
        (layout.ep if architecture.is_moe(model) else 1, resolved.expert_ranks, "spreads experts"),
    ):
        if ranks == "one_or_all" and size not in (1, layout.stage_gpus):
            yield "engine", f"{engine.title} {what} over {all_gpus} of a stage or over none, not over {size}"
    if layout.stage_gpus % layout.ep and architecture.is_moe(model):
        yield "split", f"EP{layout.ep} does not divide the {layout.stage_gpus} GPUs of a stage"
    if layout.dp > 1 and not architecture.is_moe(model):
        each = f"{layout.dp} separate replicas, since no experts tie them together"
        yield "split", f"DP{layout.dp} of a dense model is {each}: leave out --dp, and they are counted as replicas"
    split = architecture.split_why_not(model, layout, resolved, block=plan.block and resolved.fp8_block)
    if split:
        yield "split", split
    pipeline = architecture.pipeline_why_not(model, layout, resolved)
    if pipeline:
        yield "pipeline", pipeline


def _nodes_why_not(gpu: Gpu, layout: Layout) -> Iterator[str]:
    """Yield why a replica cannot span nodes: there is no network, or a group would be cut across nodes."""
    island = gpu.datasheet.island_gpus
    if layout.gpus > island and gpu.datasheet.node.inter_node_gbit_per_s_per_gpu is None:
        yield f"{layout.gpus} GPUs need a network between nodes, which the profile does not state"
    elif layout.stage_gpus > island and (layout.stage_gpus % island or (layout.tp % island and island % layout.tp)):
        yield (
            f"{layout.stage_gpus} GPUs of a stage do not fill whole nodes of {island}, each of which holds whole "
            f"groups of TP{layout.tp} or a part of one"
        )


def _unchunked(service: Service, resolved: EngineSettings) -> tuple[str, str] | None:
    """(reason, detail) if a prompt exceeds a step's token budget and the engine does not chunk prefill; else None."""
    budget = resolved.max_num_batched_tokens
    if resolved.chunked_prefill or service.phase == "decode" or service.isl <= budget:
        return None
    return (
        "token_budget",
        f"a prompt of {service.isl:,} tokens exceeds max_num_batched_tokens {budget:,} and this engine does not chunk "
        "prefill by default; raise --max-num-batched-tokens",
    )
