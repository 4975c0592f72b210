"""Sliding-window attention: grouped-query attention that sees, and keeps, only the last `window` tokens."""

from __future__ import annotations

import numpy as np

from sizing.model.attention import gqa
from sizing.model.attention.terms import Cache, Matrix, Numeric, Work, heads_why_not, kv_heads_per_gpu, windowed_pairs
from sizing.specs.model import SlidingWindowAttention


def matrices(mixer: SlidingWindowAttention, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
    """The weight matrices of one layer on one GPU. The window does not change them."""
    return gqa.projections(mixer, hidden_size, tp)


def cache(mixer: SlidingWindowAttention, tp: int, kv_bytes: float) -> Cache:
    """The cache of one layer on one GPU. `memory` adds the chunk in flight to the window."""
    return Cache(gqa.cached_bytes_per_token(mixer, tp, kv_bytes), window_tokens=mixer.window)


def decode(
    mixer: SlidingWindowAttention, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric
) -> Work:
    """The work of one decode step over at most `window` tokens per sequence."""
    pairs = sequences * np.minimum(context_tokens, mixer.window)
    return Work(
        rule="decode_attention",
        flops=gqa.attention_flops(mixer, tp, pairs),
        bytes=pairs * gqa.read_bytes_per_token(mixer, tp, kv_bytes),
        head_dim=mixer.head_dim,
        q_heads=mixer.q_heads / tp,
        kv_heads=kv_heads_per_gpu(mixer.kv_heads, tp),
        context_tokens=np.minimum(context_tokens, mixer.window),
        sequences=sequences,
        window=mixer.window,
    )


def prefill(
    mixer: SlidingWindowAttention,
    tp: int,
    kv_bytes: float,
    sequences: Numeric,
    tokens: Numeric,
    prior_tokens: Numeric,
) -> Work:
    """The work of a prefill chunk under the window. Many windows fill the GPU as one long prompt does."""
    pairs = sequences * windowed_pairs(tokens, prior_tokens, mixer.window)
    seen = tokens + np.minimum(prior_tokens, mixer.window)
    return Work(
        rule="prefill_attention",
        flops=gqa.attention_flops(mixer, tp, pairs),
        bytes=gqa.prefill_bytes(mixer, tp, kv_bytes, sequences, tokens, seen),
        head_dim=mixer.head_dim,
        q_heads=mixer.q_heads / tp,
        kv_heads=kv_heads_per_gpu(mixer.kv_heads, tp),
        prompt_tokens=tokens + prior_tokens,
        sequences=sequences,
        new_tokens=tokens,
        window=mixer.window,
    )


def small_kernels(mixer: SlidingWindowAttention, tp: int) -> tuple[tuple[str, float], ...]:
    """The small kernels of one layer other than projections and attention."""
    return gqa.small_kernels(mixer, tp)


def exchanged(mixer: SlidingWindowAttention) -> tuple[int, int, int]:
    """(query heads, values per query, values per output) that GPUs with parts of one cache exchange in decode."""
    return gqa.exchanged(mixer)


def why_not(mixer: SlidingWindowAttention, tp: int) -> str | None:
    """The reason why the heads cannot be split over `tp` GPUs, or None."""
    return heads_why_not(mixer.q_heads, mixer.kv_heads, tp)
