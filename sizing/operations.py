"""The operations of one step: what runs, how often, with which FLOPs, bytes and messages, on one GPU of a layout.

Four builders, so that closed form, simulator and the `step` command share them: `body` (all that depends on the
number of tokens alone), `head` (rows that get logits), `decode_attention` and `prefill_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sizing import architecture
from sizing.architecture import Layout
from sizing.attention import pick
from sizing.attention.terms import FLOPS_PER_MAC, Matrix, Numeric, Work
from sizing.precision import PrecisionPlan
from sizing.specs.engine import EngineSettings
from sizing.specs.model import Attention, DenseMlp, LayerKind, Model, MoeMlp

ACTIVATION_BYTES = 2  # activations travel between kernels at 16 bit
NORM_SUMS_BYTES = 8  # of a token: one 32-bit sum of squares of its queries, one of its keys
SUM_BYTES = 4  # of a query head: the log of the sum of its weights, 32 bit
TINY = 1e-12  # keeps a ratio of nothing finite
NORM_PASSES = 4  # a fused residual-add and norm reads two tensors and writes two


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one GPU: `count` times a step, each with `flops`, memory traffic `bytes` and `message_bytes`.

    `rule` names how it is timed; `role` whose weights it reads; `gpus` how many take part in a collective, one of every
    `apart` GPUs of a stage, and `fan_out` to how many experts a token goes;
    `input_values` is how many values enter a product; `head_dim`, `q_heads`, `prompt_tokens` choose the measured row of attention.
    """

    name: str
    rule: str
    count: float
    flops: Numeric = 0.0
    bytes: Numeric = 0.0
    input_values: Numeric = 0.0
    message_bytes: Numeric = 0.0
    role: str = ""
    gpus: int = 1
    apart: int = 1
    fan_out: int = 0
    head_dim: int = 0
    q_heads: float = 0
    kv_heads: int = 0
    prompt_tokens: Numeric = 0.0
    context_tokens: Numeric = 0.0


def expected_experts(experts: float, experts_per_token: int, tokens: Numeric) -> Numeric:
    """Distinct experts hit by `tokens` under uniform routing: N*(1-(1-k/N)^T). Skew makes it lower."""
    return experts * (1 - np.power(1 - experts_per_token / experts, tokens))


def busiest(mean: Numeric, ranks: int) -> Numeric:
    """Load of the busiest of `ranks` that draw loads with a mean at random, about m + sqrt(2 m ln n); never more than all."""
    most: Numeric = np.minimum(mean + np.sqrt(2 * mean * np.log(ranks)), mean * ranks)
    return most


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
        input_values=tokens * matrix.inputs,
        role=matrix.role,
    )


def busiest_load(mean: Numeric, layout: Layout, settings: EngineSettings) -> Numeric:
    """Load of the busiest rank of ep: as measured where an imbalance is stated, else of random routing."""
    if settings.expert_imbalance is None:
        return busiest(mean, layout.ep)
    return mean * min(settings.expert_imbalance, layout.ep)


def moe(
    mlp: MoeMlp,
    hidden_size: int,
    layout: Layout,
    settings: EngineSettings,
    tokens: Numeric,
    count: float,
    plan: PrecisionPlan,
) -> Operation:
    """The routed experts of one layer, fused, on the busiest rank of ep: `tokens` are of the whole replica."""
    experts = architecture.expert_matrices(mlp, hidden_size, layout)
    weights_per_expert = sum(matrix.inputs * matrix.outputs for matrix in experts)
    pairs = busiest_load(tokens * mlp.experts_per_token / layout.ep, layout, settings)
    hit = expected_experts(mlp.experts, mlp.experts_per_token, pairs * layout.ep / mlp.experts_per_token) / layout.ep
    return Operation(
        name="experts",
        rule="moe",
        count=count,
        flops=FLOPS_PER_MAC * pairs * weights_per_expert,
        bytes=hit * weights_per_expert * plan.weight_bytes("expert")
        + 2 * tokens * (mlp.latent or hidden_size) * ACTIVATION_BYTES,
        role="expert",
    )


def small(name: str, bytes_: Numeric, count: float) -> Operation:
    """A kernel that only moves activations: norm, rotary embedding and cache write, activation function, routing."""
    return Operation(name=name, rule="small", count=count, bytes=bytes_)


def body(
    model: Model, layout: Layout, settings: EngineSettings, plan: PrecisionPlan, tokens: Numeric
) -> tuple[Operation, ...]:
    """Return the operations of all layers that depend on the number of tokens alone, for `tokens` of one replica."""
    return split_body(model, layout, settings, plan, tokens) + pipeline_sends(model, layout, tokens)


def split_body(
    model: Model, layout: Layout, settings: EngineSettings, plan: PrecisionPlan, tokens: Numeric
) -> tuple[Operation, ...]:
    """Return what `body` does but for what its stages send each other: the same at every pipeline depth."""
    tokens_per_rank = tokens / layout.token_ranks
    found: list[Operation] = [small("embed", 2 * tokens_per_rank * model.hidden_size * ACTIVATION_BYTES, 1)]
    if layout.tp > 1:
        found.append(_all_reduce("embed_all_reduce", model, layout.tp, tokens_per_rank, 1))
    for index, count in architecture.whole(model).layers:
        found += _layer(model, index, count, layout, settings, plan, tokens)
    return tuple(found)


def pipeline_sends(model: Model, layout: Layout, tokens: Numeric) -> tuple[Operation, ...]:
    """Return what the stages of a pipeline send each other for `tokens` of one replica; nothing where there is one."""
    if layout.pp == 1:
        return ()
    message = tokens / layout.token_ranks * model.hidden_size * ACTIVATION_BYTES / layout.tp
    return (Operation("pipeline_send", "send", layout.pp - 1, message_bytes=message, gpus=layout.stage_gpus),)


def _layer(
    model: Model,
    index: int,
    count: int,
    layout: Layout,
    settings: EngineSettings,
    plan: PrecisionPlan,
    tokens: Numeric,
) -> list[Operation]:
    kind, rank_tokens = model.kinds[index], tokens / layout.token_ranks
    norm_bytes = NORM_PASSES * rank_tokens * model.hidden_size * ACTIVATION_BYTES
    found = [small("norms", norm_bytes, count * architecture.norm_count(kind, model))]
    for matrix in architecture.layer_matrices(model, index, layout):
        if matrix.role not in ("norm", "expert"):
            found.append(gemm(matrix, rank_tokens, count, plan))
    if kind.mixer is not None:
        qkv = sum(m.outputs for m in architecture.layer_matrices(model, index, layout) if m.name.startswith("qkv"))
        found.append(small("rope_and_cache_write", 2 * rank_tokens * qkv * ACTIVATION_BYTES, count))
        if getattr(kind.mixer, "norm_over_heads", False):
            found += _norm_over_heads(qkv, layout, rank_tokens, count)
    for mlp in kind.mlps:
        found += _mlp(mlp, model.hidden_size, layout, settings, plan, tokens, count)
    return found + _layer_collectives(model, kind, count, layout, settings, plan, tokens)


def _norm_over_heads(qkv: float, layout: Layout, rank_tokens: Numeric, count: int) -> list[Operation]:
    """Sums of squares of queries and keys, summed up over the ranks, and their scaling."""
    found = [small("qk_norm", 2 * rank_tokens * qkv * ACTIVATION_BYTES, 2 * count)]
    if layout.tp > 1:
        message = rank_tokens * NORM_SUMS_BYTES
        found.append(Operation("qk_norm_all_reduce", "all_reduce", count, message_bytes=message, gpus=layout.tp))
    return found


def _mlp(
    mlp: DenseMlp | MoeMlp,
    hidden_size: int,
    layout: Layout,
    settings: EngineSettings,
    plan: PrecisionPlan,
    tokens: Numeric,
    count: int,
) -> list[Operation]:
    rank_tokens = tokens / layout.token_ranks
    if isinstance(mlp, DenseMlp):
        width = mlp.intermediate / layout.tp * (3 if mlp.gated else 2)
        return [small("activation", rank_tokens * width * ACTIVATION_BYTES, count)]
    routed = small("route", rank_tokens * mlp.experts * ACTIVATION_BYTES * 2, count)
    return [routed, moe(mlp, hidden_size, layout, settings, tokens, count, plan)]


def _all_reduce(name: str, model: Model, gpus: int, tokens: Numeric, count: float) -> Operation:
    message = tokens * model.hidden_size * ACTIVATION_BYTES
    return Operation(name, "all_reduce", count, message_bytes=message, gpus=gpus)


def _layer_collectives(
    model: Model,
    kind: LayerKind,
    count: int,
    layout: Layout,
    settings: EngineSettings,
    plan: PrecisionPlan,
    tokens: Numeric,
) -> list[Operation]:
    """One all-reduce after the mixer and one after the MLPs; experts of several attention ranks exchange their tokens."""
    found: list[Operation] = []
    rank_tokens = tokens / layout.token_ranks
    routed = [mlp for mlp in kind.mlps if isinstance(mlp, MoeMlp)]
    if layout.tp > 1 and kind.mixer is not None and not (model.parallel_blocks and kind.mlps):
        found.append(_all_reduce("mixer_all_reduce", model, layout.tp, rank_tokens, count))
    if layout.token_ranks > 1 and routed:
        if settings.all2all_backend == "allgather" or layout.ep < layout.stage_gpus:
            found += _gathered(model, layout, tokens, count)
        else:
            found += _dispatched(model, routed[0], layout, settings, plan, tokens, count)
    elif layout.tp > 1 and kind.mlps:
        found.append(_all_reduce("mlp_all_reduce", model, layout.tp, rank_tokens, count))
    return found


def _gathered(model: Model, layout: Layout, tokens: Numeric, count: int) -> list[Operation]:
    """Every GPU gets all tokens of the stage and adds up what its experts made of them."""
    message = tokens * model.hidden_size * ACTIVATION_BYTES
    return [
        Operation("experts_all_gather", "all_gather", count, message_bytes=message, gpus=layout.stage_gpus),
        Operation("experts_reduce_scatter", "reduce_scatter", count, message_bytes=message, gpus=layout.stage_gpus),
    ]


def _dispatched(
    model: Model,
    mlp: MoeMlp,
    layout: Layout,
    settings: EngineSettings,
    plan: PrecisionPlan,
    tokens: Numeric,
    count: int,
) -> list[Operation]:
    """Each token goes to the ranks of its experts, in their precision, and comes back from each at 16 bit.

    The busiest rank binds. GPUs of a tensor-parallel group send a part of its tokens each, and gather them after.
    """
    own = tokens / layout.stage_gpus
    mean = tokens * mlp.experts_per_token / layout.ep
    uneven = busiest_load(mean, layout, settings) / np.maximum(mean, TINY)
    width = mlp.latent or model.hidden_size

    def send(name: str, value_bytes: float) -> Operation:
        return Operation(
            name,
            settings.all2all_backend,
            count,
            message_bytes=own * uneven * width * value_bytes,
            gpus=layout.ep,
            fan_out=mlp.experts_per_token,
        )

    found = [send("experts_dispatch", plan.input_bytes("expert")), send("experts_combine", ACTIVATION_BYTES)]
    if layout.tp > 1:
        message = tokens / layout.token_ranks * model.hidden_size * ACTIVATION_BYTES
        found.append(Operation("experts_all_gather", "all_gather", count, message_bytes=message, gpus=layout.tp))
    return found


def head(
    model: Model, layout: Layout, settings: EngineSettings, plan: PrecisionPlan, rows: Numeric
) -> tuple[Operation, ...]:
    """Return final norm, output head and sampling for `rows` rows of one replica; of a pooled model norm and pooling alone."""
    rank_rows = rows / layout.token_ranks
    norm = small("final_norm", NORM_PASSES * rank_rows * model.hidden_size * ACTIVATION_BYTES, 1)
    if model.pooled:
        return (norm, small("pool", 2 * rank_rows * model.hidden_size * ACTIVATION_BYTES, 1))
    matrix = architecture.head_matrix(model, layout.tp, settings.vocabulary_padding)
    found = [
        norm,
        gemm(matrix, rank_rows, 1, plan),
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
        head_dim=work.head_dim,
        q_heads=work.q_heads,
        kv_heads=work.kv_heads,
        prompt_tokens=work.prompt_tokens,
        context_tokens=work.context_tokens,
    )


def decode_attention(
    model: Model,
    layout: Layout,
    plan: PrecisionPlan,
    sequences: Numeric,
    context_tokens: Numeric,
    queries: int = 1,
) -> tuple[Operation, ...]:
    """Return the decode attention of all layers for `sequences` of one replica at a mean context.

    Each reads its cache once for all of its `queries`, the tokens of it in the step. Where caches are cut by tokens a GPU
    reads its part of each, for the heads of all GPUs that have the others.
    """
    found = []
    ranks = layout.dp * layout.cache_parts
    for index, count in architecture.whole(model).layers:
        mixer = model.kinds[index].mixer
        if mixer is not None:
            heads_over = layout.tp // layout.dcp
            work = pick(mixer.kind).decode(mixer, heads_over, plan.kv_bytes, sequences / ranks, context_tokens)
            found.append(_attention(f"decode_{mixer.kind}", replace(work, flops=work.flops * queries), count))
    return tuple(found)


def parts_joined(model: Model, layout: Layout, sequences: Numeric, queries: int = 1) -> tuple[Operation, ...]:
    """Return what GPUs that keep other parts of the same caches exchange for decoding `sequences` of one replica.

    Queries before attention; after it the outputs, added up with the weights that each part's sum gives it (vLLM's decode
    context parallelism; pass-Q of arXiv:2411.01783).
    """
    found = []
    tokens = sequences * queries / layout.dp
    groups = (
        ("dcp", layout.dcp, 1, tokens / layout.cp, layout.tp // layout.dcp),
        ("cp", layout.cp, layout.tp, tokens, layout.tp),
    )
    for name, gpus, apart, of_group, heads_over in groups if layout.cache_parts > 1 else ():
        for index, count in architecture.whole(model).layers if gpus > 1 else ():
            mixer = model.kinds[index].mixer
            for what, rule, values_bytes in _exchanged(mixer) if mixer is not None else ():
                message = of_group * values_bytes / heads_over
                found.append(Operation(f"{name}_{what}", rule, count, message_bytes=message, gpus=gpus, apart=apart))
    return tuple(found)


def _exchanged(mixer: Attention) -> tuple[tuple[str, str, float], ...]:
    """Return what a token's attention over parts of its cache takes in and gives: name, collective, bytes of all heads."""
    heads, query_values, output_values = pick(mixer.kind).exchanged(mixer)
    return (
        ("queries", "all_gather", heads * query_values * ACTIVATION_BYTES),
        ("sums", "all_gather", heads * SUM_BYTES),
        ("outputs", "reduce_scatter", heads * output_values * ACTIVATION_BYTES),
    )


def prefill_attention(
    model: Model,
    layout: Layout,
    plan: PrecisionPlan,
    sequences: Numeric,
    tokens: Numeric,
    prior_tokens: Numeric,
) -> tuple[Operation, ...]:
    """Return the prefill attention of all layers: `tokens` new ones in each of `sequences`, `prior_tokens` cached.

    Ranks of context parallelism each take as many query-key pairs of a prompt (its first and last parts together).
    """
    found = []
    for index, count in architecture.whole(model).layers:
        kind = model.kinds[index]
        if kind.mixer is not None:
            work = pick(kind.mixer.kind).prefill(
                kind.mixer, layout.tp, plan.kv_bytes, sequences / layout.token_ranks, tokens, prior_tokens
            )
            found.append(_attention(f"prefill_{kind.mixer.kind}", work, count))
            found += _keys_gathered(kind, layout, plan, sequences / layout.dp, tokens, prior_tokens, count)
    return tuple(found)


def _keys_gathered(
    kind: LayerKind,
    layout: Layout,
    plan: PrecisionPlan,
    sequences: Numeric,
    tokens: Numeric,
    prior_tokens: Numeric,
    count: int,
) -> list[Operation]:
    """Return how GPUs that keep parts of a prompt's cache get at the whole of it: what is cached, and other ranks' new tokens.

    Nothing of it is hidden under attention, as a ring would (arXiv:2411.01783) and engines do not all do.
    """
    found = []
    held = architecture.layer_cache(kind, Layout(tp=layout.tp), plan.kv_bytes)
    seen = prior_tokens if held.window_tokens is None else np.minimum(prior_tokens, held.window_tokens)
    if layout.dcp > 1:
        message = sequences * seen * held.bytes_per_token / layout.cp
        found.append(Operation("dcp_keys", "all_gather", count, message_bytes=message, gpus=layout.dcp))
    if layout.cp > 1:
        message = sequences * (seen + tokens) * held.bytes_per_token
        found.append(Operation("cp_keys", "all_gather", count, message_bytes=message, gpus=layout.cp, apart=layout.tp))
    return found
