"""Multi-head latent attention: one latent per token serves all heads, so every tensor-parallel rank caches it whole.

Prefill expands the latent into heads. Decode absorbs the expansion into the query and the output, and works on the latent
itself (DeepSeek-V2, arXiv:2405.04434, section 2.1). With an indexer (DeepSeek-V3.2, arXiv:2512.02556) a query scores all
cached index keys and attends to the `index_topk` best.
"""

from __future__ import annotations

import numpy as np

from sizing.model.attention import (
    FLOPS_PER_MAC,
    GATE_PASSES,
    KEY_AND_VALUE,
    Cache,
    Matrix,
    Numeric,
    Work,
    causal_pairs,
    windowed_pairs,
)
from sizing.specs.model import MlaAttention

SCALED_VALUES, SCALE_BYTES, ROTARY_BYTES = 128, 4, 2  # layout of 8-bit latents for sparse attention
NORM_PASSES = 2  # a norm reads a tensor and writes one
INDEX_KEY_BYTES = 1.03125  # bytes per value: an index key is FP8 with one 4-byte scale per 128 values


def _latent_width(mixer: MlaAttention) -> int:
    return mixer.kv_lora_rank + mixer.qk_rope_head_dim


def _latent_bytes(mixer: MlaAttention, kv_bytes: float) -> float:
    """Bytes of a cached latent.

    Sparse attention in 8 bit keeps scales for blocks of values, and the rotary part at 16 bit: 656 bytes for 512 and 64
    values (vLLM's fp8_ds_mla; SGLang alike).
    """
    if not mixer.index_topk or kv_bytes > 1:
        return _latent_width(mixer) * kv_bytes
    scales = mixer.kv_lora_rank / SCALED_VALUES * SCALE_BYTES
    return mixer.kv_lora_rank * kv_bytes + scales + mixer.qk_rope_head_dim * ROTARY_BYTES


def matrices(mixer: MlaAttention, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
    """The weight matrices of one layer on one GPU: replicated down-projections, up-projections split by heads."""
    heads, latent, rank = mixer.q_heads / tp, _latent_width(mixer), mixer.q_lora_rank
    q_width = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    value_width, expanded = heads * mixer.v_head_dim, heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    sizes = {"kv_b_proj": (mixer.kv_lora_rank, expanded), "o_proj": (value_width, hidden_size)}
    if rank:  # engines join both down-projections in one product
        sizes |= {"q_kv_a_proj": (hidden_size, rank + latent), "q_b_proj": (rank, q_width)}
    else:
        sizes |= {"kv_a_proj": (hidden_size, latent), "q_proj": (hidden_size, q_width)}
    if mixer.output_gate:
        sizes["g_proj"] = (hidden_size, value_width)
    if mixer.index_heads:
        sizes["index_q_proj"] = (rank or hidden_size, mixer.index_heads * mixer.index_head_dim)
        sizes["index_k_proj"] = (hidden_size, mixer.index_head_dim + mixer.index_heads)
    return tuple(Matrix(name, "attention", *size) for name, size in sizes.items())


def _index_bytes_per_token(mixer: MlaAttention) -> float:
    return INDEX_KEY_BYTES * mixer.index_head_dim if mixer.index_heads else 0.0


def cache(mixer: MlaAttention, tp: int, kv_bytes: float) -> Cache:
    """The cache of one layer on one GPU: the whole latent for any `tp`, and the index key, if any."""
    return Cache(bytes_per_token=_latent_bytes(mixer, kv_bytes) + _index_bytes_per_token(mixer))


def _indexer_flops(mixer: MlaAttention, pairs: Numeric) -> Numeric:
    return FLOPS_PER_MAC * mixer.index_heads * mixer.index_head_dim * pairs


def decode(mixer: MlaAttention, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric) -> Work:
    """The work of one decode step in absorbed form: scores over latent and rope, values over the latent."""
    heads = mixer.q_heads // tp
    attended = np.minimum(context_tokens, mixer.index_topk) if mixer.index_topk else context_tokens
    per_pair = FLOPS_PER_MAC * heads * (_latent_width(mixer) + mixer.kv_lora_rank)
    return Work(
        rule="mla_decode",
        flops=sequences * attended * per_pair + _indexer_flops(mixer, sequences * context_tokens),
        bytes=sequences * (attended * _latent_bytes(mixer, kv_bytes) + context_tokens * _index_bytes_per_token(mixer)),
        head_dim=_latent_width(mixer),
        q_heads=heads,
        context_tokens=context_tokens,
        sequences=sequences,
        token_bytes=_latent_bytes(mixer, kv_bytes),
        pair_values=_latent_width(mixer) + mixer.kv_lora_rank,
        chosen=mixer.index_topk or 0,
        index_heads=mixer.index_heads or 0,
    )


def prefill(
    mixer: MlaAttention, tp: int, kv_bytes: float, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> Work:
    """The work of a prefill chunk in expanded form, with values `v_head_dim` wide."""
    heads = mixer.q_heads / tp
    width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
    seen = tokens + prior_tokens
    all_pairs = causal_pairs(tokens, prior_tokens)
    pairs = windowed_pairs(tokens, prior_tokens, mixer.index_topk) if mixer.index_topk else all_pairs
    activation_bytes = 2 * heads * (width * tokens + KEY_AND_VALUE * mixer.v_head_dim * seen)
    return Work(
        rule="mla_prefill",
        flops=sequences * (FLOPS_PER_MAC * heads * width * pairs + _indexer_flops(mixer, all_pairs)),
        bytes=sequences * (seen * _latent_bytes(mixer, kv_bytes) + activation_bytes),
        head_dim=mixer.v_head_dim,
        q_heads=heads,
        prompt_tokens=seen,
        sequences=sequences,
        new_tokens=tokens,
        pair_values=_latent_width(mixer) + mixer.kv_lora_rank,
        chosen=mixer.index_topk or 0,
        index_heads=mixer.index_heads or 0,
    )


def small_kernels(mixer: MlaAttention, tp: int) -> tuple[tuple[str, float], ...]:
    """The norms of both latents, which one kernel or two at a time make, and the output gate of one layer, if any."""
    norms = ("latent_norms", NORM_PASSES * ((mixer.q_lora_rank or 0) + mixer.kv_lora_rank))
    gate = ("output_gate", GATE_PASSES * mixer.q_heads * mixer.v_head_dim / tp)
    return (norms, gate) if mixer.output_gate else (norms,)


def exchanged(mixer: MlaAttention) -> tuple[int, int, int]:
    """(query heads, values per absorbed query, values per output over the latent) that GPUs exchange in decode."""
    return mixer.q_heads, _latent_width(mixer), mixer.kv_lora_rank


def why_not(mixer: MlaAttention, tp: int) -> str | None:
    """The reason why the heads cannot be split over `tp` GPUs, or None. The latent is replicated."""
    return None if mixer.q_heads % tp == 0 else f"{mixer.q_heads} attention heads are not divisible by TP{tp}"
