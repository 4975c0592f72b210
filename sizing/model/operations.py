"""The operations of one step on one GPU of a layout: what runs, how often, and its FLOPs, bytes and messages.

Operations are products, experts, small kernels, and messages between the GPUs of a replica: sums and parts of tensors,
tokens for experts, parts of caches. Four builders make them; closed form, simulator and the `step` command share them.
`body` has everything that depends only on the number of tokens, `head` the rows that get logits, and `decode_attention` and
`prefill_attention` the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sizing.model import architecture
from sizing.model.architecture import Layout, Shard
from sizing.model.attention import ACTIVATION_BYTES, FLOPS_PER_MAC, Matrix, Numeric, Work, pick
from sizing.model.precision import PrecisionPlan
from sizing.specs.engine import EngineSettings
from sizing.specs.frozen import Frozen
from sizing.specs.model import Attention, DenseMlp, LayerKind, Model, MoeMlp


class Routed(Frozen):
    """Experts of a layer and the load of the busiest of `ranks`: `pairs` of token and expert, and `arriving` tokens.

    `inputs` and `width` are those of an expert on this rank. `dispatch` is the way in which tokens arrive; None means that
    all tokens are gathered.
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


class Operation(Frozen):
    """One operation on one GPU: `count` times per step, each with `flops`, memory traffic `bytes` and `message_bytes`.

    `rule` names how it is timed, and `role` is the role of the weights that it reads. A collective has `gpus` members, one
    of every `apart` GPUs of a stage. `fan_out` is the number of experts to which a token goes. `of_all` means that it works
    on the tokens of all attention-data ranks together, not only on those of its own rank. `rows` and `matrix` are set for a
    product, `work` for attention.
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
    """The operations on `tokens` tokens of a replica whose fullest attention-data rank has `fullest` tokens.

    `build` makes operations for tokens that are spread evenly over the ranks. All ranks meet at the experts of every layer.
    So each operation takes its time on the fullest rank, except the operations that share all tokens.
    """
    as_full, together = build(fullest * ranks), build(tokens)
    return tuple(every if own.of_all else own for own, every in zip(as_full, together, strict=True))


def expected_experts(experts: float, experts_per_token: int, tokens: Numeric) -> Numeric:
    """Distinct experts hit by `tokens` under uniform routing: N*(1-(1-k/N)^T). Skew makes it lower."""
    return experts * (1 - np.power(1 - experts_per_token / experts, tokens))


def busiest(mean: Numeric, ranks: int) -> Numeric:
    """Load of the busiest of `ranks` ranks with random loads of a mean, about m + sqrt(2 m ln n), at most the total."""
    most: Numeric = np.minimum(mean + np.sqrt(2 * mean * np.log(ranks)), mean * ranks)
    return most


def busiest_load(mean: Numeric, layout: Layout, settings: EngineSettings) -> Numeric:
    """Load of the busiest expert-parallel rank: by the measured imbalance if stated, else by random routing."""
    if settings.expert_imbalance is None:
        return busiest(mean, layout.ep)
    return mean * min(settings.expert_imbalance, layout.ep)


def gemm(matrix: Matrix, tokens: Numeric, count: float, plan: PrecisionPlan) -> Operation:
    """A dense product of `tokens` rows with one matrix: weights are read once, inputs read and outputs written."""
    flops = FLOPS_PER_MAC * tokens * matrix.inputs * matrix.outputs
    weights = matrix.inputs * matrix.outputs * plan.weight_bytes(matrix.role)
    activations = matrix.inputs * plan.input_bytes(matrix.role) + matrix.outputs * ACTIVATION_BYTES
    moved = weights + tokens * activations
    return Operation(matrix.name, "gemm", count, flops, moved, rows=tokens, matrix=matrix, role=matrix.role)


def dispatches(layout: Layout, settings: EngineSettings) -> bool:
    """Whether tokens go only to the ranks of their experts: several attention ranks share whole experts."""
    whole = layout.token_ranks > 1 and layout.ep == layout.stage_gpus
    return whole and settings.all2all_backend != "allgather"


def moe(shard: Shard, mlp: MoeMlp, tokens: Numeric, count: float) -> Operation:
    """The fused routed experts of one layer on the busiest rank of ep; `tokens` counts the whole replica."""
    hidden_size, layout, settings = shard.model.hidden_size, shard.layout, shard.settings
    per_token, inputs, weight_bytes = (
        mlp.experts_per_token,
        mlp.latent or hidden_size,
        shard.plan.weight_bytes("expert"),
    )
    experts = architecture.expert_matrices(mlp, hidden_size, layout)
    weights_per_expert = sum(matrix.inputs * matrix.outputs for matrix in experts)
    pairs = busiest_load(tokens * per_token / layout.ep, layout, settings)
    way: str | None = None
    rows = arriving = tokens  # of a rank: all that are gathered
    if dispatches(layout, settings):  # or those that arrive at it
        rows, arriving, way = pairs, pairs / per_token, settings.all2all_backend
    hit = expected_experts(mlp.slots, per_token, pairs * layout.ep / per_token) / layout.ep
    sizes = (inputs, mlp.intermediate / layout.moe_tp, mlp.gated, weight_bytes)
    routed = Routed(mlp.slots, per_token, layout.ep, *sizes, way, np.maximum(pairs, TINY), arriving)
    flops = FLOPS_PER_MAC * pairs * weights_per_expert
    moved = hit * weights_per_expert * weight_bytes + 2 * rows * inputs * ACTIVATION_BYTES
    return Operation("experts", "moe", count, flops, moved, role="expert", of_all=True, routed=routed)


def small(name: str, bytes_: Numeric, count: float) -> Operation:
    """A kernel that only moves activations, such as a norm, rotary embedding and cache write, activation function, routing."""
    return Operation(name=name, rule="small", count=count, bytes=bytes_)


SUM_BYTES = 4  # per query head: the log of the sum of its weights, 32 bit
TINY = 1e-12  # avoids 0/0


def all_reduce(name: str, model: Model, gpus: int, tokens: Numeric, count: float) -> Operation:
    """The all-reduce of the hidden states of `tokens` tokens over `gpus` GPUs."""
    message = tokens * model.hidden_size * ACTIVATION_BYTES
    return Operation(name, "all_reduce", count, message_bytes=message, gpus=gpus, rows=tokens)


def pipeline_sends(shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    """Messages between pipeline stages for `tokens` tokens of one replica; empty for one stage."""
    layout = shard.layout
    if layout.pp == 1:
        return ()
    message = tokens / layout.token_ranks * shard.model.hidden_size * ACTIVATION_BYTES / layout.tp
    return (Operation("pipeline_send", "send", layout.pp - 1, message_bytes=message, gpus=layout.stage_gpus),)


def of_layer(shard: Shard, kind: LayerKind, count: int, tokens: Numeric) -> list[Operation]:
    """The messages of one layer: an all-reduce after the mixer and one after the MLPs, or the exchange of experts' tokens."""
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
    """Every GPU gets all tokens of the stage; afterwards the results of its experts are summed."""
    message = tokens * shard.model.hidden_size * ACTIVATION_BYTES
    return [
        Operation(name, rule, count, message_bytes=message, gpus=shard.layout.stage_gpus, of_all=True)
        for name, rule in (("experts_all_gather", "all_gather"), ("experts_reduce_scatter", "reduce_scatter"))
    ]


def _dispatched(shard: Shard, mlp: MoeMlp, tokens: Numeric, count: int) -> list[Operation]:
    """Each token goes to the ranks of its experts, in their precision, and comes back from each in 16 bit.

    The busiest rank sets the time, both as sender and as receiver, because it gets back what it sends. The GPUs of a
    tensor-parallel group each send a part of the group's tokens, and gather the results afterwards.
    """
    layout, hidden_size = shard.layout, shard.model.hidden_size
    own = tokens / layout.stage_gpus
    mean = tokens * mlp.experts_per_token / layout.ep
    uneven = busiest_load(mean, layout, shard.settings) / np.maximum(mean, TINY)
    width = mlp.latent or hidden_size

    def send(name: str, value_bytes: float) -> Operation:
        message, fan_out = own * uneven * width * value_bytes, mlp.experts_per_token
        way = shard.settings.all2all_backend
        return Operation(name, way, count, message_bytes=message, gpus=layout.ep, fan_out=fan_out)

    found = [send("experts_dispatch", shard.plan.input_bytes("expert")), send("experts_combine", ACTIVATION_BYTES)]
    if layout.tp > 1:
        message = tokens / layout.token_ranks * hidden_size * ACTIVATION_BYTES
        found.append(Operation("experts_all_gather", "all_gather", count, message_bytes=message, gpus=layout.tp))
    return found


def parts_joined(shard: Shard, sequences: Numeric) -> tuple[Operation, ...]:
    """Exchanges between GPUs with parts of the same caches, in a decode step of `sequences` sequences of a replica.

    They exchange queries before attention. After attention they sum the outputs, weighted by the sum of each part (decode
    context parallelism in vLLM; pass-Q in arXiv:2411.01783).
    """
    found = []
    model, layout = shard.model, shard.layout
    tokens = sequences * shard.extras.verified / layout.dp
    heads_over = layout.tp // layout.dcp  # a part of a cache is read for the heads of all GPUs of a DCP group
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
    queries, outputs = (heads * values * ACTIVATION_BYTES for values in (query_values, output_values))
    sums = ("sums", "all_gather", heads * SUM_BYTES)
    return ("queries", "all_gather", queries), sums, ("outputs", "reduce_scatter", outputs)


def keys_gathered(
    shard: Shard, kind: LayerKind, count: int, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> list[Operation]:
    """Exchanges that give each GPU all keys of a prompt: the cached ones, and the new tokens of other ranks.

    They do not overlap with attention. A ring would overlap (arXiv:2411.01783), but not every engine uses one.
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


NORM_SUMS_BYTES = 8  # per token: a 32-bit sum of squares of its queries and one of its keys
SUM_PASSES = 3  # a sum reads two tensors and writes one
BRANCH_NORMS = 3  # before, after, and of the router, for each further MLP of a layer whose outputs are normalised
LAYER_INPUT_KERNELS = 4  # of a layer's own embeddings: gate, norm, sum, scale
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
    if model.norms_after:
        blocks = (kind.mixer is not None) + bool(kind.mlps) + BRANCH_NORMS * max(0, len(kind.mlps) - 1)
        found.append(small("norms_after", norm_bytes, count * blocks))
    if model.layer_inputs:
        found += _layer_inputs(shard, rank_tokens, count)
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


def _layer_inputs(shard: Shard, rank_tokens: Numeric, count: int) -> list[Operation]:
    """A layer's embeddings of its own: gated by its output, projected, normalised and added (Gemma 3n and 4). They are not split."""
    width, hidden_size = shard.model.layer_inputs, shard.model.hidden_size
    shapes = (("layer_input_gate", hidden_size, width), ("layer_input_proj", width, hidden_size))
    found = [gemm(Matrix(name, "embedding", *shape), rank_tokens, count, shard.plan) for name, *shape in shapes]
    moved = SUM_PASSES * rank_tokens * hidden_size * ACTIVATION_BYTES
    return [*found, small("layer_input_sum", moved, LAYER_INPUT_KERNELS * count)]


def _norms_of_heads(shard: Shard, mixer: Attention, qkv: float, rank_tokens: Numeric, count: int) -> list[Operation]:
    """Norms of queries and keys: of each head separately, or of all heads at once, which needs a sum over ranks."""
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
    found = [Operation("route", "route", count, bytes=logits, routed=experts.routed), experts]
    if mlp.shared_intermediate:  # its activation, and the sum with the routed experts' results
        width = mlp.shared_intermediate / shard.layout.tp * (3 if mlp.gated else 2)
        values = (("shared_expert_activation", width), ("shared_expert_sum", SUM_PASSES * shard.model.hidden_size))
        found += [replace(small(n, rank_tokens * v * ACTIVATION_BYTES, count), rows=rank_tokens) for n, v in values]
    return found


def head(shard: Shard, rows: Numeric) -> tuple[Operation, ...]:
    """Final norm, output head and sampling for `rows` rows of one replica. A pooled model has only norm and pooling."""
    model, layout, settings = shard.model, shard.layout, shard.settings
    rank_rows = rows / layout.token_ranks
    norm = small("final_norm", NORM_PASSES * rank_rows * model.hidden_size * ACTIVATION_BYTES, 1)
    if model.pooled:
        return (norm, small("pool", 2 * rank_rows * model.hidden_size * ACTIVATION_BYTES, 1))
    matrix = architecture.head_matrix(model, layout.tp, settings.vocabulary_padding)
    sampling = small("sample", rank_rows * model.vocab_size * settings.sampler_bytes_per_logit, 1)
    found = [norm, gemm(matrix, rank_rows, 1, shard.plan), sampling]
    if layout.tp > 1:
        message = rank_rows * model.vocab_size * ACTIVATION_BYTES
        found.append(Operation("logits_all_gather", "all_gather", 1, message_bytes=message, gpus=layout.tp))
    return tuple(found)


def _attention(name: str, work: Work, count: int) -> Operation:
    return Operation(name, work.rule, count, work.flops, work.bytes, work=work)


def decode_attention(shard: Shard, sequences: Numeric, context_tokens: Numeric) -> tuple[Operation, ...]:
    """The decode attention of all layers for `sequences` sequences of one replica at a mean context.

    Each sequence reads its cache once for all its tokens in the step, and each beam for its own. If caches are split by tokens, a GPU reads its part
    of each cache, for the heads of all GPUs that hold the other parts.
    """
    found = []
    layout = shard.layout
    ranks, heads_over = layout.dp * layout.cache_parts, layout.tp // layout.dcp
    spoken, verified = shard.extras.speculation, shard.extras.verified
    passes = spoken.passes if spoken else 1.0
    for index, count in architecture.whole(shard.model).layers:
        mixer = shard.model.kinds[index].mixer
        if mixer is not None:
            own = sequences * passes / ranks
            work = pick(mixer.kind).decode(mixer, heads_over, shard.plan.kv_bytes, own, context_tokens)
            work = work._replace(flops=work.flops * verified / passes, queries=verified)
            found.append(_attention(f"decode_{mixer.kind}", work, count))
    return tuple(found)


def prefill_attention(
    shard: Shard, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> tuple[Operation, ...]:
    """The prefill attention of all layers: `tokens` new tokens in each of `sequences` prompts, `prior_tokens` cached.

    Ranks of context parallelism each take the same number of query-key pairs of a prompt, because each has an early and a
    late part.
    """
    found = []
    layout = shard.layout
    own = sequences / layout.token_ranks
    for index, count in architecture.whole(shard.model).layers:
        kind = shard.model.kinds[index]
        if (mixer := kind.mixer) is not None:
            work = pick(mixer.kind).prefill(mixer, layout.tp, shard.plan.kv_bytes, own, tokens, prior_tokens)
            found.append(_attention(f"prefill_{mixer.kind}", work, count))
            found += keys_gathered(shard, kind, count, sequences / layout.dp, tokens, prior_tokens)
    return tuple(found)
