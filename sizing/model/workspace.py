"""Work memory of one GPU: the peak activation of a profile run, workspace of attention, buffers of the exchange with experts."""

from __future__ import annotations

from typing import Literal

from sizing.model import architecture
from sizing.model.architecture import Layout, Shard, Stage
from sizing.model.operations import dispatches
from sizing.model.pages import caches
from sizing.specs.model import DenseMlp, Heads, MlaAttention, Model, MoeMlp
from sizing.specs.units import MIB

RESIDUAL_BYTES = 2  # the hidden state kept at 16 bit while logits are sampled
EXPERT_BUFFER_BYTES = 2  # fused experts keep two 16-bit buffers per routed token, and the output
EXPANDED_BYTES = 2  # latent attention expands its latents into keys and values in 16 bit
CONVOLUTION_BYTES = 2  # values of the convolution before a recurrent state are 16 bit


def forward_bytes(shard: Shard, tokens: int) -> float:
    """Peak of the forward pass at `tokens` tokens: hidden states and MLP buffers, and the experts' workspace.

    `tokens` counts all attention-data ranks together. Expert kernels work in chunks, and in a published log of eight ranks
    (MF32 of tests/data/memory_cases.yaml) the workspace is for no more tokens than this.
    """
    model, layout, rule = shard.model, shard.layout, shard.settings.forward_activation
    rank_tokens = max(1, tokens // layout.token_ranks)
    widest = max(
        (
            mlp.intermediate if isinstance(mlp, DenseMlp) else mlp.shared_intermediate
            for kind in model.kinds
            for mlp in kind.mlps
        ),
        default=0,
    )
    states = max(
        (held.bytes_per_drafted / CONVOLUTION_BYTES for held, _ in caches(shard, architecture.whole(model))),
        default=0.0,
    )
    expanded = max((_expanded(kind.mixer) for kind in model.kinds if isinstance(kind.mixer, MlaAttention)), default=0)
    buffers = max(
        rule.per_intermediate_bytes * widest / layout.tp,
        rule.per_state_width_bytes * states,
        EXPANDED_BYTES * expanded / layout.tp,
    )
    hidden = rule.per_hidden_bytes * model.hidden_size
    experts = (_experts_bytes(model, mlp, layout, tokens) for kind in model.kinds for mlp in kind.mlps)
    forward = max(rank_tokens * (hidden + buffers), max(experts, default=0.0))
    return rank_tokens * rule.per_hidden_bytes * model.hidden_size * (model.streams - 1) + forward


def _expanded(mixer: MlaAttention) -> int:
    """Values per token in latent attention, over all heads: queries, expanded keys and values, whole keys, the output."""
    query = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    return mixer.q_heads * (2 * query + mixer.qk_nope_head_dim + 2 * mixer.v_head_dim)


def _experts_bytes(model: Model, mlp: DenseMlp | MoeMlp, layout: Layout, tokens: int) -> float:
    """Workspace of the fused experts: two buffers of routed tokens and the output (vLLM triton_moe.py)."""
    if isinstance(mlp, DenseMlp):
        return 0.0
    width, inner = mlp.intermediate / layout.moe_tp, mlp.latent or model.hidden_size
    routed = tokens * mlp.experts_per_token * (max(width, inner) + max(2 * width, inner))
    return EXPERT_BUFFER_BYTES * (routed + tokens * inner)


def activation_bytes(shard: Shard, stage: Stage, tokens: int) -> float:
    """Peak activation of one GPU: the larger of the forward pass and, on the last stage, logits and sampling.

    The sampling rank has logits of the whole vocabulary, so tensor parallelism does not shrink them. A pooled model has no
    logits. If the engine profiles its image encoder, the encoder's output stays allocated during both, unless the encoder
    itself takes more.
    """
    encoding, kept = _encoder_bytes(shard, tokens) if stage.first else (0.0, 0.0)
    return max(encoding, kept + _text_bytes(shard, stage, tokens))


def _encoder_bytes(shard: Shard, tokens: int) -> tuple[float, float]:
    """(peak of the image encoder, bytes of its output) in a profile run with the largest images that fit its budget."""
    profile, image = shard.settings.vision_profile, shard.model.vision
    if profile is None or image is None or image.largest_tokens is None:
        return 0.0, 0.0
    count = max(1, tokens // image.largest_tokens)
    kept = count * image.largest_tokens * shard.model.hidden_size * RESIDUAL_BYTES
    per_patch = image.hidden_size * (profile.whole_bytes + profile.split_bytes / shard.layout.tp)
    return kept + count * image.largest_patches * per_patch, kept


def _text_bytes(shard: Shard, stage: Stage, tokens: int) -> float:
    model, settings = shard.model, shard.settings
    forward = forward_bytes(shard, tokens)
    if model.pooled or not stage.last:
        return forward
    rows = min(settings.max_num_seqs, tokens)
    sampling = rows * model.vocab_size * settings.sampler_bytes_per_logit
    return max(forward, sampling + RESIDUAL_BYTES * tokens * model.hidden_size)


def workspace_bytes(shard: Shard) -> float:
    """Bytes of the attention kernels' workspace on one GPU, by the widest queries of a layer."""
    rule = shard.settings.attention_workspace
    widths = [kind.mixer.q_heads * kind.mixer.head_dim for kind in shard.model.kinds if isinstance(kind.mixer, Heads)]
    if rule is None or (rule.caches and shard.plan.kv_format not in rule.caches) or shard.model.pooled:
        return 0.0
    values = shard.settings.max_num_batched_tokens * max(widths, default=0) / shard.layout.tp
    return max(rule.mib * MIB, rule.per_query_value_bytes * values)


def why_no_exchange(shard: Shard) -> Literal["engine", "layout"] | None:
    """The reason why no memory is kept for an exchange under any all-to-all backend; None where a backend needs some."""
    more = shard.settings.reserve_more
    if shard.settings.exchange_buffers is None and not (more is not None and more.exchange_mib):
        return "engine"
    spread = shard.settings.model_copy(update={"all2all_backend": "low_latency"})
    return None if dispatches(shard.layout, spread) else "layout"


def exchange_bytes(shard: Shard) -> float:
    """Bytes of the buffers through which one GPU's tokens reach experts on other GPUs; 0 if all tokens are gathered.

    With low latency, every expert has space for the messages of each token of a rank.
    """
    rule, settings, model = shard.settings.exchange_buffers, shard.settings, shard.model
    if rule is None or not architecture.is_moe(model) or not dispatches(shard.layout, settings):
        return 0.0
    if settings.all2all_backend == "high_throughput":
        return rule.high_throughput_mib * MIB
    experts = max(mlp.slots for kind in model.kinds for mlp in kind.mlps if isinstance(mlp, MoeMlp))
    sent = rule.message.copies * experts * rule.low_latency_tokens * rule.message.bytes_of(model.hidden_size)
    return rule.low_latency_mib * MIB + sent
