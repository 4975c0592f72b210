"""Mamba-2 state-space layers (arXiv:2405.21060): a fixed state per sequence, a short convolution, no growing cache."""

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
from sizing.specs.model import SsmAttention

STATE_PASSES = 3  # decay and input, accumulate, read out
exchanged = of_whole_sequence


def _inner_width(mixer: SsmAttention, tp: int) -> float:
    return mixer.heads * mixer.head_dim / tp


def _group_width(mixer: SsmAttention, tp: int) -> float:
    """Width of B (and of C): groups are split over GPUs, or replicated if there are fewer groups than GPUs."""
    return max(1, mixer.groups // tp) * mixer.state_size


def matrices(mixer: SsmAttention, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
    """The weight matrices of one layer on one GPU: input projection (z, x, B, C, dt), convolution, output."""
    inner = _inner_width(mixer, tp)
    conv_width = _conv_width(mixer, tp)
    return (
        Matrix("in_proj", "attention", hidden_size, inner + conv_width + mixer.heads / tp),
        Matrix("conv1d", "norm", conv_width, mixer.conv_kernel, bias=conv_width),
        Matrix("out_proj", "attention", inner, hidden_size),
    )


def _conv_width(mixer: SsmAttention, tp: int) -> float:
    return _inner_width(mixer, tp) + 2 * _group_width(mixer, tp)


def _state_bytes(mixer: SsmAttention, tp: int) -> float:
    recurrent = _inner_width(mixer, tp) * mixer.state_size * mixer.state_bytes
    return recurrent + (mixer.conv_kernel - 1) * _conv_width(mixer, tp) * ACTIVATION_BYTES


def cache(mixer: SsmAttention, tp: int, kv_bytes: float) -> Cache:
    """The state of a sequence in one layer on one GPU. It depends on neither length nor cache precision."""
    drafted = _conv_width(mixer, tp) * ACTIVATION_BYTES
    return Cache(fixed_bytes_per_sequence=_state_bytes(mixer, tp), bytes_per_drafted=drafted)


def decode(mixer: SsmAttention, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric) -> Work:
    """The work of one decode step. It reads and writes the state of each sequence once."""
    flops = sequences * STATE_PASSES * FLOPS_PER_MAC * _inner_width(mixer, tp) * mixer.state_size
    return Work("state", flops, sequences * READ_AND_WRITE * _state_bytes(mixer, tp))


def prefill(
    mixer: SsmAttention, tp: int, kv_bytes: float, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> Work:
    """The work of a prefill chunk: linear in tokens, activations streamed once."""
    inner = _inner_width(mixer, tp)
    streamed = tokens * (READ_AND_WRITE * inner + 2 * _group_width(mixer, tp)) * ACTIVATION_BYTES
    flops = sequences * tokens * STATE_PASSES * FLOPS_PER_MAC * inner * mixer.state_size
    return Work("state", flops, sequences * (READ_AND_WRITE * _state_bytes(mixer, tp) + streamed))


def small_kernels(mixer: SsmAttention, tp: int) -> tuple[tuple[str, float], ...]:
    """The small kernels of one layer: short convolution, gated norm of the output."""
    conv, norm = READ_AND_WRITE * _conv_width(mixer, tp), GATE_PASSES * _inner_width(mixer, tp)
    return ("short_conv", conv), ("gated_norm", norm)


def why_not(mixer: SsmAttention, tp: int) -> str | None:
    """The reason why the heads cannot be split over `tp` GPUs, or None."""
    return None if mixer.heads % tp == 0 else f"{mixer.heads} state-space heads are not divisible by TP{tp}"
