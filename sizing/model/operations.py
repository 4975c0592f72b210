"""The operations of one step: what runs, how often, with which FLOPs, bytes and messages, on one GPU of a layout.

Four builders, so that closed form, simulator and the `step` command share them: `body` (all that depends on the
number of tokens alone), `head` (rows that get logits), `decode_attention` and `prefill_attention`.
"""

from __future__ import annotations

from dataclasses import replace

from sizing.model import architecture, exchange
from sizing.model.architecture import Layout
from sizing.model.attention import pick
from sizing.model.attention.terms import Numeric, Work
from sizing.model.operation import ACTIVATION_BYTES, Operation, gemm, moe, small
from sizing.model.shard import Shard
from sizing.specs.model import DenseMlp, MoeMlp

NORM_SUMS_BYTES = 8  # of a token: one 32-bit sum of squares of its queries, one of its keys
NORM_PASSES = 4  # a fused residual-add and norm reads two tensors and writes two


def body(shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    """The operations of all layers that depend only on `tokens`, the tokens of one replica."""
    return split_body(shard, tokens) + exchange.pipeline_sends(shard, tokens)


def split_body(shard: Shard, tokens: Numeric) -> tuple[Operation, ...]:
    """The operations of `body` without sends between pipeline stages; they do not depend on the pipeline depth."""
    model, layout = shard.model, shard.layout
    tokens_per_rank = tokens / layout.token_ranks
    found: list[Operation] = [small("embed", 2 * tokens_per_rank * model.hidden_size * ACTIVATION_BYTES, 1)]
    if layout.tp > 1:
        found.append(exchange.all_reduce("embed_all_reduce", model, layout.tp, tokens_per_rank, 1))
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
        if getattr(kind.mixer, "norm_over_heads", False):
            found += _norm_over_heads(qkv, layout, rank_tokens, count)
    for mlp in kind.mlps:
        found += _mlp(shard, mlp, tokens, count)
    return found + exchange.of_layer(shard, kind, count, tokens)


def _norm_over_heads(qkv: float, layout: Layout, rank_tokens: Numeric, count: int) -> list[Operation]:
    """Sums of squares of queries and keys, summed up over the ranks, and their scaling."""
    found = [small("qk_norm", 2 * rank_tokens * qkv * ACTIVATION_BYTES, 2 * count)]
    if layout.tp > 1:
        message = rank_tokens * NORM_SUMS_BYTES
        found.append(Operation("qk_norm_all_reduce", "all_reduce", count, message_bytes=message, gpus=layout.tp))
    return found


def _mlp(shard: Shard, mlp: DenseMlp | MoeMlp, tokens: Numeric, count: int) -> list[Operation]:
    rank_tokens = tokens / shard.layout.token_ranks
    if isinstance(mlp, DenseMlp):
        width = mlp.intermediate / shard.layout.tp * (3 if mlp.gated else 2)
        return [small("activation", rank_tokens * width * ACTIVATION_BYTES, count)]
    routed = small("route", rank_tokens * mlp.experts * ACTIVATION_BYTES * 2, count)
    return [routed, moe(shard, mlp, tokens, count)]


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
        head_dim=work.head_dim,
        q_heads=work.q_heads,
        kv_heads=work.kv_heads,
        prompt_tokens=work.prompt_tokens,
        context_tokens=work.context_tokens,
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
            found.append(_attention(f"decode_{mixer.kind}", replace(work, flops=flops), count))
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
            found += exchange.keys_gathered(shard, kind, count, sequences / layout.dp, tokens, prior_tokens)
    return tuple(found)
