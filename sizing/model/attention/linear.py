"""Linear attention with a gated delta rule: a fixed state per sequence instead of a growing cache.

State and update follow Gated DeltaNet (arXiv:2412.06464) and Kimi Linear (arXiv:2510.26692).
"""

from __future__ import annotations

from sizing.model.attention import (
    ACTIVATION_BYTES,
    FLOPS_PER_MAC,
    GATE_PASSES,
    READ_AND_WRITE,
    Cache,
    Matrix,
    Numeric,
    Work,
    of_whole_sequence,
)
from sizing.specs.model import LinearAttention

STATE_PASSES = 3  # decay and write, delta correction, read: three products of key x value size per token
GATES = 2  # a head's decay and its update
exchanged = of_whole_sequence


def _widths(mixer: LinearAttention, tp: int) -> tuple[float, float]:
    return mixer.key_heads * mixer.key_head_dim / tp, mixer.value_heads * mixer.value_head_dim / tp


def matrices(mixer: LinearAttention, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
    """The weight matrices of one layer on one GPU: query, key, value and gates; short convolution; output."""
    key_width, value_width = _widths(mixer, tp)
    conv_width, heads = _conv_width(mixer, tp), mixer.value_heads / tp
    conv = Matrix("conv1d", "norm", conv_width, mixer.conv_kernel)
    output = Matrix("o_proj", "attention", value_width, hidden_size)
    if not mixer.gate_rank:
        joined = Matrix("qkvz_ba_proj", "attention", hidden_size, conv_width + value_width + 2 * heads)
        return conv, output, joined
    return (
        conv,
        output,
        Matrix("qkv_proj", "attention", hidden_size, conv_width + heads),
        Matrix("gates_a", "attention", hidden_size, 2 * mixer.gate_rank),
        Matrix("gates_b", "attention", mixer.gate_rank, key_width + value_width),
    )


def _conv_width(mixer: LinearAttention, tp: int) -> float:
    key_width, value_width = _widths(mixer, tp)
    return 2 * key_width + value_width


def _state_bytes(mixer: LinearAttention, tp: int) -> float:
    recurrent = mixer.value_heads / tp * mixer.key_head_dim * mixer.value_head_dim * mixer.state_bytes
    return recurrent + (mixer.conv_kernel - 1) * _conv_width(mixer, tp) * ACTIVATION_BYTES


def cache(mixer: LinearAttention, tp: int, kv_bytes: float) -> Cache:
    """The state of a sequence in one layer on one GPU. It depends on neither length nor cache precision."""
    drafted = _conv_width(mixer, tp) * ACTIVATION_BYTES
    return Cache(fixed_bytes_per_sequence=_state_bytes(mixer, tp), bytes_per_drafted=drafted)


def _rule(part: str, mixer: LinearAttention) -> str:
    """The timing rule: Kimi's layers, whose gates have a rank, use other kernels than the gated delta rule."""
    return f"{part}_kda" if mixer.gate_rank else f"{part}_gdn"


def _flops_per_token(mixer: LinearAttention, tp: int) -> float:
    return STATE_PASSES * FLOPS_PER_MAC * mixer.value_heads / tp * mixer.key_head_dim * mixer.value_head_dim


def decode(mixer: LinearAttention, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric) -> Work:
    """The work of one decode step. It reads and writes the state of each sequence once."""
    moved = sequences * READ_AND_WRITE * _state_bytes(mixer, tp)
    return Work(_rule("state", mixer), flops=sequences * _flops_per_token(mixer, tp), bytes=moved)


def prefill(
    mixer: LinearAttention, tp: int, kv_bytes: float, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> Work:
    """The work of a prefill chunk: linear in tokens, activations streamed once."""
    key_width, value_width = _widths(mixer, tp)
    streamed = tokens * (2 * key_width + READ_AND_WRITE * value_width) * ACTIVATION_BYTES
    return Work(
        rule=_rule("scan", mixer),
        flops=sequences * tokens * _flops_per_token(mixer, tp),
        bytes=sequences * (READ_AND_WRITE * _state_bytes(mixer, tp) + streamed),
        q_heads=mixer.value_heads / tp,
        kv_heads=max(1, mixer.key_heads // tp),
        sequences=sequences,
        new_tokens=tokens,
    )


def small_kernels(mixer: LinearAttention, tp: int) -> tuple[tuple[str, float], ...]:
    """The small kernels of one layer: short convolution, decay and update gates, gated norm of the output."""
    conv, gates = READ_AND_WRITE * _conv_width(mixer, tp), GATES * READ_AND_WRITE * mixer.value_heads / tp
    return ("short_conv", conv), ("gates", gates), ("gated_norm", GATE_PASSES * _widths(mixer, tp)[1])


def why_not(mixer: LinearAttention, tp: int) -> str | None:
    """The reason why the heads cannot be split over `tp` GPUs, or None."""
    if mixer.key_heads % tp or mixer.value_heads % tp:
        return f"{mixer.key_heads} key and {mixer.value_heads} value heads of linear attention do not divide by TP{tp}"
    return None
