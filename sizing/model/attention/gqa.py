"""Attention of query heads over keys and values: of all earlier tokens, of a window, or of a whole prompt.

Every token caches one key and one value per KV head. A window keeps only the last ones, and an encoder keeps none.
"""

from __future__ import annotations

from typing import TypeGuard

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
    chunked_pairs,
    heads_why_not,
    in_chunk,
    kv_heads_per_gpu,
    windowed_pairs,
)
from sizing.specs.model import BidirectionalAttention, Heads, SlidingWindowAttention


def matrices(mixer: Heads, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
    """The fused query, key and value projection and the output projection of one GPU."""
    q_width, value = mixer.q_heads * mixer.head_dim / tp, mixer.value_dim or mixer.head_dim
    kept = 0 if mixer.reuses_cache else mixer.head_dim + (0 if mixer.shared_kv else value)
    qkv_width = q_width * (2 if mixer.output_gate else 1) + kv_heads_per_gpu(mixer.kv_heads, tp) * kept
    return (
        Matrix("qkv_proj", "attention", hidden_size, qkv_width, bias=qkv_width if mixer.bias else 0),
        Matrix("o_proj", "attention", mixer.q_heads * value / tp, hidden_size),
    )


def cached_bytes_per_token(mixer: Heads, tp: int, kv_bytes: float) -> float:
    """Bytes that one token of one layer keeps on one GPU. Key and value are both stored, even if they are equal.

    The index key that selects blocks is shared by all heads, so each GPU holds it.
    """
    if mixer.reuses_cache:
        return 0.0
    return read_bytes_per_token(mixer, tp, kv_bytes) + mixer.index_dim * kv_bytes


def read_bytes_per_token(mixer: Heads, tp: int, kv_bytes: float) -> float:
    """Bytes that attention reads per cached token; a layer without its own cache reads that of another layer."""
    return kv_heads_per_gpu(mixer.kv_heads, tp) * (mixer.head_dim + (mixer.value_dim or mixer.head_dim)) * kv_bytes


def attention_flops(mixer: Heads, tp: int, pairs: Numeric) -> Numeric:
    """FLOPs of scores and weighted values for `pairs` query-key pairs."""
    return FLOPS_PER_MAC * mixer.q_heads / tp * (mixer.head_dim + (mixer.value_dim or mixer.head_dim)) * pairs


def prefill_bytes(
    mixer: Heads, tp: int, kv_bytes: float, sequences: Numeric, tokens: Numeric, seen: Numeric
) -> Numeric:
    """Bytes of a prefill chunk: keys and values are read once, queries and outputs move at 16 bit."""
    activation_bytes = 2 * KEY_AND_VALUE * mixer.q_heads / tp * mixer.head_dim * tokens
    return sequences * (seen * read_bytes_per_token(mixer, tp, kv_bytes) + activation_bytes)


def cache(mixer: Heads, tp: int, kv_bytes: float) -> Cache:
    """The cache of one layer on one GPU, with `kv_bytes` bytes per value. `memory` adds the chunk in flight to a window."""
    if isinstance(mixer, BidirectionalAttention):
        return Cache()
    return Cache(cached_bytes_per_token(mixer, tp, kv_bytes), window_tokens=_window(mixer))


def _window(mixer: Heads) -> int | None:
    return mixer.window if isinstance(mixer, SlidingWindowAttention) else None


def _is_chunked(mixer: Heads) -> TypeGuard[SlidingWindowAttention]:
    return isinstance(mixer, SlidingWindowAttention) and mixer.chunked


def decode(mixer: Heads, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric) -> Work:
    """The work of one decode step. Each sequence reads its cache once, at most a window. An encoder decodes nothing."""
    if isinstance(mixer, BidirectionalAttention):
        return Work(rule="prefill_attention", flops=0.0 * sequences, bytes=0.0 * sequences, head_dim=mixer.head_dim)
    window = _window(mixer)
    seen = context_tokens if window is None else np.minimum(context_tokens, window)
    if _is_chunked(mixer):
        seen = in_chunk(context_tokens, mixer.window)
    return Work(
        rule="decode_attention",
        flops=attention_flops(mixer, tp, sequences * seen),
        bytes=sequences * seen * read_bytes_per_token(mixer, tp, kv_bytes),
        head_dim=mixer.head_dim,
        q_heads=mixer.q_heads / tp,
        kv_heads=kv_heads_per_gpu(mixer.kv_heads, tp),
        context_tokens=seen,
        sequences=sequences,
        window=window or 0,
    )


def prefill(mixer: Heads, tp: int, kv_bytes: float, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric) -> Work:
    """The work of a prefill chunk: causal attention within the chunk, and attention to the cached tokens or their window.

    Many windows use the GPU as well as one long prompt. Chunks of attention are like prompts of their own. An encoder has whole prompts, with every pair in both directions.
    """
    window, causal = _window(mixer), not isinstance(mixer, BidirectionalAttention)
    whole, pairs = tokens + prior_tokens, causal_pairs(tokens, prior_tokens)
    seen = whole
    if _is_chunked(mixer):
        part = np.clip(tokens, 1.0, mixer.window)
        each = chunked_pairs(tokens, prior_tokens, mixer.window) / np.maximum(tokens, 1.0)
        sequences, tokens, pairs = sequences * tokens / part, part, each * part
        seen = whole = part + np.maximum(each - (part + 1) / 2, 0.0)
    elif window is not None:
        pairs, seen = windowed_pairs(tokens, prior_tokens, window), tokens + np.minimum(prior_tokens, window)
    elif not causal:
        whole, pairs, seen = tokens, tokens * tokens, tokens
    return Work(
        rule="prefill_attention",
        flops=attention_flops(mixer, tp, sequences * pairs),
        bytes=prefill_bytes(mixer, tp, kv_bytes, sequences, tokens, seen),
        head_dim=mixer.head_dim,
        q_heads=mixer.q_heads / tp,
        kv_heads=kv_heads_per_gpu(mixer.kv_heads, tp),
        prompt_tokens=whole,
        sequences=sequences,
        new_tokens=tokens,
        window=window or 0,
        causal=causal,
    )


def small_kernels(mixer: Heads, tp: int) -> tuple[tuple[str, float], ...]:
    """The output gate of one layer, if any: it reads two tensors and writes one."""
    return (("output_gate", GATE_PASSES * mixer.q_heads * mixer.head_dim / tp),) if mixer.output_gate else ()


def exchanged(mixer: Heads) -> tuple[int, int, int]:
    """(query heads, values per query, values per output) that GPUs with parts of one cache exchange in decode.

    Raises ValueError for an encoder.
    """
    if isinstance(mixer, BidirectionalAttention):
        raise ValueError("an encoder has no cache")
    return mixer.q_heads, mixer.head_dim, mixer.value_dim or mixer.head_dim


def why_not(mixer: Heads, tp: int) -> str | None:
    """The reason why the heads cannot be split over `tp` GPUs, or None."""
    return heads_why_not(mixer.q_heads, mixer.kv_heads, tp)
