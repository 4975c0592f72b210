"""Attention of an encoder: each token sees its whole prompt, before it and after it, and nothing is cached."""

from __future__ import annotations

from sizing.model.attention import gqa
from sizing.model.attention.terms import Cache, Matrix, Numeric, Work, kv_heads_per_gpu
from sizing.specs.model import BidirectionalAttention


def matrices(mixer: BidirectionalAttention, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
    """The weight matrices of one layer on one GPU."""
    return gqa.projections(mixer, hidden_size, tp)


def cache(mixer: BidirectionalAttention, tp: int, kv_bytes: float) -> Cache:
    """No cache: a prompt is read once."""
    return Cache()


def decode(
    mixer: BidirectionalAttention, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric
) -> Work:
    """No work: an encoder decodes nothing."""
    return Work(rule="prefill_attention", flops=0.0 * sequences, bytes=0.0 * sequences, head_dim=mixer.head_dim)


def prefill(
    mixer: BidirectionalAttention,
    tp: int,
    kv_bytes: float,
    sequences: Numeric,
    tokens: Numeric,
    prior_tokens: Numeric,
) -> Work:
    """The work of whole prompts: every pair of tokens, in both directions."""
    return Work(
        rule="prefill_attention",
        flops=gqa.attention_flops(mixer, tp, sequences * tokens * tokens),
        bytes=gqa.prefill_bytes(mixer, tp, kv_bytes, sequences, tokens, tokens),
        head_dim=mixer.head_dim,
        q_heads=mixer.q_heads / tp,
        kv_heads=kv_heads_per_gpu(mixer.kv_heads, tp),
        prompt_tokens=tokens,
        sequences=sequences,
        new_tokens=tokens,
        causal=False,
    )


def small_kernels(mixer: BidirectionalAttention, tp: int) -> tuple[tuple[str, float], ...]:
    """The small kernels of one layer other than projections and attention."""
    return gqa.small_kernels(mixer, tp)


def exchanged(mixer: BidirectionalAttention) -> tuple[int, int, int]:
    """Raise ValueError: there is no cache to hold parts of."""
    raise ValueError("an encoder has no cache")


def why_not(mixer: BidirectionalAttention, tp: int) -> str | None:
    """The reason why the heads cannot be split over `tp` GPUs, or None."""
    return gqa.why_not(mixer, tp)
