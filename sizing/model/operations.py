"""The operations of one step on one GPU of a layout: what runs, how often, with which FLOPs, bytes and messages.

Operations are products, experts and small kernels, and what the GPUs of a replica send each other: sums and parts of tensors, tokens
to their experts, parts of caches. Four builders make them, which closed form, simulator and the `step` command share: `body` (all
that depends on the number of tokens alone), `head` (rows that get logits), `decode_attention` and `prefill_attention`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sizing.model import architecture
from sizing.model.architecture import Layout, Shard
from sizing.model.attention import pick
from sizing.model.attention.terms import FLOPS_PER_MAC, Matrix, Numeric, Work
from sizing.model.precision import PrecisionPlan
from sizing.specs.engine import EngineSettings
from sizing.specs.model import Attention, DenseMlp, LayerKind, Model, MoeMlp

ACTIVATION_BYTES = 2  # activations travel between kernels at 16 bit


@dataclass(frozen=True, slots=True)
class Routed:
    """Experts of a layer and what the busiest of `ranks` gets: `pairs` of a token and an expert, `arriving` tokens,
    by which `dispatch` (None: all were gathered).

    `inputs` and `width` are of an expert on this rank.
    """

    experts: int
    experts_per_token: int
    ranks: int
    inputs: float
    width: float
    gated: bool
    weight_bytes: float
    dispatch: str | None
    pairs: Numeric
    arriving: Numeric


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one GPU: `count` times a step, each with `flops`, memory traffic `bytes` and `message_bytes`.

    `rule` names how it is timed; `role` whose weights it reads; `gpus` how many take part in a collective, one of every
    `apart` GPUs of a stage, and `fan_out` to how many experts a token goes;
    `of_all` says that it works on the tokens of all attention-data ranks together, others on those of one's own;
    `rows` and `matrix` are those of a product, `work` is that of attention.
    """

    name: str
    rule: str
    count: float
    flops: Numeric = 0.0
    bytes: Numeric = 0.0
    rows: Numeric = 0.0
    matrix: Matrix | None = None
    message_bytes: Numeric = 0.0
    role: str = ""
    gpus: int = 1
    apart: int = 1
    fan_out: int = 0
    work: Work | None = None
    of_all: bool = False
    routed: Routed | None = None


def unevenly(
    build: Callable[[Numeric], tuple[Operation, ...]], tokens: Numeric, fullest: Numeric, ranks: int
) -> tuple[Operation, ...]:
    """The operations on `tokens` tokens of a replica. Its fullest attention-data rank has `fullest` tokens.

    `build` makes operations for tokens that are spread evenly over the ranks. All ranks meet at the experts of every
    layer. So each operation takes its time on the fullest rank, except those that share all tokens.
    """
    as_full, together = build(fullest * ranks), build(tokens)
    return tuple(every if own.of_all else own for own, every in zip(as_full, together, strict=True))


def expected_experts(experts: float, experts_per_token: int, tokens: Numeric) -> Numeric:
    """Distinct experts hit by `tokens` under uniform routing: N*(1-(1-k/N)^T). Skew makes it lower."""
    return experts * (1 - np.power(1 - experts_per_token / experts, tokens))


def busiest(mean: Numeric, ranks: int) -> Numeric:
    """Load of the busiest of `ranks` that draw loads with a mean at random, about m + sqrt(2 m ln n); never more than all."""
    most: Numeric = np.minimum(mean + np.sqrt(2 * mean * np.log(ranks)), mean * ranks)
    return most


def busiest_load(mean: Numeric, layout: Layout, settings: EngineSettings) -> Numeric:
    """Load of the busiest rank of ep: as measured where an imbalance is stated, else of random routing."""
    if settings.expert_imbalance is None:
        return busiest(mean, layout.ep)
    return mean * min(settings.expert_imbalance, layout.ep)


def gemm(matrix: Matrix, tokens: Numeric, count: float, plan: PrecisionPlan) -> Operation:
    """A dense product of `tokens` rows with one matrix: weights read once, inputs read and outputs written."""
    input_bytes = plan.input_bytes(matrix.role)
    return Operation(
        name=matrix.name,
        rule="gemm",
        count=count,
        flops=FLOPS_PER_MAC * tokens * matrix.inputs * matrix.outputs,
        bytes=matrix.inputs * matrix.outputs * plan.weight_bytes(matrix.role)
        + tokens * (matrix.inputs * input_bytes + matrix.outputs * ACTIVATION_BYTES),
        rows=tokens,
        matrix=matrix,
        role=matrix.role,
    )


def dispatches(layout: Layout, settings: EngineSettings) -> bool:
    """Whether tokens go only to the ranks of their experts: several attention ranks share whole experts."""
    whole = layout.token_ranks > 1 and layout.ep == layout.stage_gpus
    return whole and settings.all2all_backend != "allgather"


def moe(shard: Shard, mlp: MoeMlp, tokens: Numeric, count: float) -> Operation:
    """The routed experts of one layer, fused, on the busiest rank of ep: `tokens` are of the whole replica."""
    hidden_size, layout, settings = shard.model.hidden_size, shard.layout, shard.settings
    experts = architecture.expert_matrices(mlp, hidden_size, layout)
    weights_per_expert = sum(matrix.inputs * matrix.outputs for matrix in experts)
    pairs = busiest_load(tokens * mlp.experts_per_token / layout.ep, layout, settings)
    rows = pairs if dispatches(layout, settings) else tokens  # that a rank gets: its own, or all that were gathered
    hit = expected_experts(mlp.slots, mlp.experts_per_token, pairs * layout.ep / mlp.experts_per_token) / layout.ep
    weight_bytes = shard.plan.weight_bytes("expert")
    routed = Routed(
        mlp.slots,
        mlp.experts_per_token,
        layout.ep,
        mlp.latent or hidden_size,
        mlp.intermediate / layout.moe_tp,
        mlp.gated,
        weight_bytes,
        settings.all2all_backend if dispatches(layout, settings) else None,
        np.maximum(pairs, TINY),
        rows / mlp.experts_per_token if dispatches(layout, settings) else tokens,
    )
    return Operation(
        name="experts",
        rule="moe",
        count=count,
        flops=FLOPS_PER_MAC * pairs * weights_per_expert,
        bytes=hit * weights_per_expert * weight_bytes + 2 * rows * (mlp.latent or hidden_size) * ACTIVATION_BYTES,
        role="expert",
        of_all=True,
        routed=routed,
    )


def small(name: str, bytes_: Numeric, count: float) -> Operation:
    """A kernel that only moves activations: norm, rotary embedding and cache write, activation function, routing."""
    return Operation(name=name, rule="small", count=count, bytes=bytes_)


SUM_BYTES = 4  # of a query head: the log of the sum of its weights, 32 bit
TINY = 1e-12  # keeps a ratio of nothing finite


def all_reduce(name: str, model: Model, gpus: int, tokens: Numeric, count: float) -> Operation:
    """The all-reduce of the hidden states of `tokens` tokens over `gpus` GPUs."""
    message = tokens * model.hidden_size * ACTIVATION_BYTES
    return Operation(name, "all_reduce", count, message_bytes=message, gpus=gpus)


def pipeline_sends(shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    """Messages between pipeline stages for `tokens` tokens of one replica; empty for one stage."""
    layout = shard.layout
    if layout.pp == 1:
        return ()
    message = tokens / layout.token_ranks * shard.model.hidden_size * ACTIVATION_BYTES / layout.tp
    return (Operation("pipeline_send", "send", layout.pp - 1, message_bytes=message, gpus=layout.stage_gpus),)


def of_layer(shard: Shard, kind: LayerKind, count: int, tokens: Numeric) -> list[Operation]:
    """One all-reduce after the mixer and one after the MLPs; experts of several attention ranks exchange their tokens."""
    found: list[Operation] = []
    model, layout = shard.model, shard.layout
    rank_tokens = tokens / layout.token_ranks
    routed = [mlp for mlp in kind.mlps if isinstance(mlp, MoeMlp)]
    if layout.tp > 1 and kind.mixer is not None and not (model.parallel_blocks and kind.mlps):
        found.append(all_reduce("mixer_all_reduce", model, layout.tp, rank_tokens, count))
    if layout.token_ranks > 1 and routed:
        if dispatches(layout, shard.settings):
            found += _dispatched(shard, routed[0], tokens, count)
        else:
            found += _gathered(shard, tokens, count)
    elif layout.tp > 1 and kind.mlps:
        found.append(all_reduce("mlp_all_reduce", model, layout.tp, rank_tokens, count))
    return found


def _gathered(shard: Shard, tokens: Numeric, count: int) -> list[Operation]:
    """Every GPU gets all tokens of the stage and adds up what its experts made of them."""
    message = tokens * shard.model.hidden_size * ACTIVATION_BYTES
    return [
        Operation(name, rule, count, message_bytes=message, gpus=shard.layout.stage_gpus, of_all=True)
        for name, rule in (("experts_all_gather", "all_gather"), ("experts_reduce_scatter", "reduce_scatter"))
    ]


def _dispatched(shard: Shard, mlp: MoeMlp, tokens: Numeric, count: int) -> list[Operation]:
    """Each token goes to the ranks of its experts, in their precision, and comes back from each at 16 bit.

    The busiest rank binds, of those that send and those that get: what one has to send it gets back. GPUs of a tensor-parallel group send a part of its tokens each, and gather them after.
    """
    layout, hidden_size = shard.layout, shard.model.hidden_size
    own = tokens / layout.stage_gpus
    mean = tokens * mlp.experts_per_token / layout.ep
    uneven = busiest_load(mean, layout, shard.settings) / np.maximum(mean, TINY)
    width = mlp.latent or hidden_size

    def send(name: str, value_bytes: float) -> Operation:
        return Operation(
            name,
            shard.settings.all2all_backend,
            count,
            message_bytes=own * uneven * width * value_bytes,
            gpus=layout.ep,
            fan_out=mlp.experts_per_token,
        )

    found = [send("experts_dispatch", shard.plan.input_bytes("expert")), send("experts_combine", ACTIVATION_BYTES)]
    if layout.tp > 1:
        message = tokens / layout.token_ranks * hidden_size * ACTIVATION_BYTES
        found.append(Operation("experts_all_gather", "all_gather", count, message_bytes=message, gpus=layout.tp))
    return found


def parts_joined(shard: Shard, sequences: Numeric) -> tuple[Operation, ...]:
    """Exchanges between GPUs with parts of the same caches, in a decode step of `sequences` sequences of a replica.

    They exchange queries before attention. After attention they add up outputs, weighted by the sum of each part
    (decode context parallelism in vLLM; pass-Q in arXiv:2411.01783).
    """
    found = []
    model, layout = shard.model, shard.layout
    tokens = sequences * shard.extras.verified / layout.dp
    heads_over = layout.tp // layout.dcp  # a part of a cache is read for the heads of all GPUs that DCP joins
    groups = (("dcp", layout.dcp, 1, tokens / layout.cp), ("cp", layout.cp, layout.tp, tokens))
    for name, gpus, apart, of_group in groups if layout.cache_parts > 1 else ():
        for index, count in architecture.whole(model).layers if gpus > 1 else ():
            mixer = model.kinds[index].mixer
            for what, rule, values_bytes in _exchanged(mixer) if mixer is not None else ():
                message = of_group * values_bytes / heads_over
                found.append(Operation(f"{name}_{what}", rule, count, message_bytes=message, gpus=gpus, apart=apart))
    return tuple(found)


def _exchanged(mixer: Attention) -> tuple[tuple[str, str, float], ...]:
    """(name, collective, bytes of all heads) of each exchange of one token."""
    heads, query_values, output_values = pick(mixer.kind).exchanged(mixer)
    return (
        ("queries", "all_gather", heads * query_values * ACTIVATION_BYTES),
        ("sums", "all_gather", heads * SUM_BYTES),
        ("outputs", "reduce_scatter", heads * output_values * ACTIVATION_BYTES),
    )


def keys_gathered(
    shard: Shard, kind: LayerKind, count: int, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> list[Operation]:
    """Exchanges that give each GPU all keys of a prompt: the cached ones and the new tokens of other ranks.

    They do not overlap with attention. A ring would (arXiv:2411.01783), but not every engine uses one.
    """
    found = []
    layout = shard.layout
    held = architecture.layer_cache(kind, Layout(tp=layout.tp), shard.plan.kv_bytes)
    seen = prior_tokens if held.window_tokens is None else np.minimum(prior_tokens, held.window_tokens)
    if layout.dcp > 1:
        message = sequences * seen * held.bytes_per_token / layout.cp
        found.append(Operation("dcp_keys", "all_gather", count, message_bytes=message, gpus=layout.dcp))
    if layout.cp > 1:
        message = sequences * (seen + tokens) * held.bytes_per_token
        found.append(Operation("cp_keys", "all_gather", count, message_bytes=message, gpus=layout.cp, apart=layout.tp))
    return found


NORM_SUMS_BYTES = 8  # of a token: one 32-bit sum of squares of its queries, one of its keys
NORM_PASSES = 4  # a fused residual-add and norm reads two tensors and writes two


def body(shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    """The operations of all layers that depend only on `tokens`, the tokens of one replica."""
    return split_body(shard, tokens) + pipeline_sends(shard, tokens)


def split_body(shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    """The operations of `body` without sends between pipeline stages; they do not depend on the pipeline depth."""
    model, layout = shard.model, shard.layout
    tokens_per_rank = tokens / layout.token_ranks
    found: list[Operation] = [small("embed", 2 * tokens_per_rank * model.hidden_size * ACTIVATION_BYTES, 1)]
    if layout.tp > 1:
        found.append(all_reduce("embed_all_reduce", model, layout.tp, tokens_per_rank, 1))
    for index, count in architecture.whole(model).layers:
        found += _layer(shard, index, count, tokens)
    return tuple(found)


def _layer(shard: Shard, index: int, count: int, tokens: Numeric) -> list[Operation]:
    model, layout = shard.model, shard.layout
    kind, rank_tokens = model.kinds[index], tokens / layout.token_ranks
    norm_bytes = NORM_PASSES * rank_tokens * model.hidden_size * ACTIVATION_BYTES
    found = [small("norms", norm_bytes, count * architecture.norm_count(kind, model))]
    for matrix in architecture.layer_matrices(model, index, layout):
        if matrix.role not in ("norm", "expert"):
            found.append(gemm(matrix, rank_tokens, count, shard.plan))
    if kind.mixer is not None:
        qkv = sum(m.outputs for m in architecture.layer_matrices(model, index, layout) if m.name.startswith("qkv"))
        found.append(small("rope_and_cache_write", 2 * rank_tokens * qkv * ACTIVATION_BYTES, count))
        for name, values in pick(kind.mixer.kind).small_kernels(kind.mixer, layout.tp):
            found.append(small(name, rank_tokens * values * ACTIVATION_BYTES, count))
        found += _norms_of_heads(shard, kind.mixer, qkv, rank_tokens, count)
    for mlp in kind.mlps:
        found += _mlp(shard, mlp, tokens, count)
    return found + of_layer(shard, kind, count, tokens)


def _norms_of_heads(shard: Shard, mixer: Attention, qkv: float, rank_tokens: Numeric, count: int) -> list[Operation]:
    """Norms of queries and keys: of each head by itself, or of all at once, for which ranks sum up their squares."""
    over_heads, layout = getattr(mixer, "norm_over_heads", False), shard.layout
    if not over_heads and not getattr(mixer, "norm_heads", False):
        return []
    kernels = shard.settings.qk_norm_kernels
    launched = kernels.over_heads if over_heads else kernels.by_head
    found = [small("qk_norm", 2 * rank_tokens * qkv * ACTIVATION_BYTES, launched * count)] if launched else []
    if over_heads and layout.tp > 1:
        message = rank_tokens * NORM_SUMS_BYTES
        found.append(Operation("qk_norm_all_reduce", "all_reduce", count, message_bytes=message, gpus=layout.tp))
    return found


def _mlp(shard: Shard, mlp: DenseMlp | MoeMlp, tokens: Numeric, count: int) -> list[Operation]:
    rank_tokens = tokens / shard.layout.token_ranks
    if isinstance(mlp, DenseMlp):
        width = mlp.intermediate / shard.layout.tp * (3 if mlp.gated else 2)
        return [small("activation", rank_tokens * width * ACTIVATION_BYTES, count)]
    experts = moe(shard, mlp, tokens, count)
    logits = rank_tokens * mlp.experts * ACTIVATION_BYTES * 2
    return [Operation("route", "route", count, bytes=logits, routed=experts.routed), experts]


def head(shard: Shard, rows: Numeric) -> tuple[Operation, ...]:
    """Final norm, output head and sampling for `rows` rows of one replica. A pooled model has norm and pooling only."""
    model, layout, settings = shard.model, shard.layout, shard.settings
    rank_rows = rows / layout.token_ranks
    norm = small("final_norm", NORM_PASSES * rank_rows * model.hidden_size * ACTIVATION_BYTES, 1)
    if model.pooled:
        return (norm, small("pool", 2 * rank_rows * model.hidden_size * ACTIVATION_BYTES, 1))
    matrix = architecture.head_matrix(model, layout.tp, settings.vocabulary_padding)
    found = [
        norm,
        gemm(matrix, rank_rows, 1, shard.plan),
        small("sample", rank_rows * model.vocab_size * settings.sampler_bytes_per_logit, 1),
    ]
    if layout.tp > 1:
        message = rank_rows * model.vocab_size * ACTIVATION_BYTES
        found.append(Operation("logits_all_gather", "all_gather", 1, message_bytes=message, gpus=layout.tp))
    return tuple(found)


def _attention(name: str, work: Work, count: int) -> Operation:
    return Operation(
        name=name,
        rule=work.rule,
        count=count,
        flops=work.flops,
        bytes=work.bytes,
        work=work,
    )


def decode_attention(shard: Shard, sequences: Numeric, context_tokens: Numeric) -> tuple[Operation, ...]:
    """The decode attention of all layers for `sequences` of one replica at a mean context.

    Each reads its cache once for all tokens of it in the step. Where caches are cut by tokens a GPU reads its part of each,
    for the heads of all GPUs that have the others.
    """
    found = []
    layout = shard.layout
    ranks, heads_over = layout.dp * layout.cache_parts, layout.tp // layout.dcp
    for index, count in architecture.whole(shard.model).layers:
        mixer = shard.model.kinds[index].mixer
        if mixer is not None:
            work = pick(mixer.kind).decode(mixer, heads_over, shard.plan.kv_bytes, sequences / ranks, context_tokens)
            flops = work.flops * shard.extras.verified
            found.append(
                _attention(f"decode_{mixer.kind}", replace(work, flops=flops, queries=shard.extras.verified), count)
            )
    return tuple(found)


def prefill_attention(
    shard: Shard, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> tuple[Operation, ...]:
    """The prefill attention of all layers: `tokens` new ones in each of `sequences`, `prior_tokens` cached.

    Ranks of context parallelism each take as many query-key pairs of a prompt (its first and last parts together).
    """
    found = []
    layout = shard.layout
    for index, count in architecture.whole(shard.model).layers:
        kind = shard.model.kinds[index]
        if kind.mixer is not None:
            work = pick(kind.mixer.kind).prefill(
                kind.mixer, layout.tp, shard.plan.kv_bytes, sequences / layout.token_ranks, tokens, prior_tokens
            )
            found.append(_attention(f"prefill_{kind.mixer.kind}", work, count))
            found += keys_gathered(shard, kind, count, sequences / layout.dp, tokens, prior_tokens)
    return tuple(found)
