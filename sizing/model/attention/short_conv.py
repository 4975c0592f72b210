"""Gated short convolutions (LFM2): three input projections, a short convolution per channel, one output projection."""

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
from sizing.specs.model import ShortConv

INPUTS = 3  # two gates and what they gate
exchanged = of_whole_sequence


def matrices(mixer: ShortConv, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
    """The weight matrices of one layer on one GPU."""
    width = mixer.width / tp
    return (
        Matrix("in_proj", "attention", hidden_size, INPUTS * width),
        Matrix("conv1d", "norm", width, mixer.kernel),
        Matrix("out_proj", "attention", width, hidden_size),
    )


def _state_bytes(mixer: ShortConv, tp: int) -> float:
    return mixer.width / tp * (mixer.kernel - 1) * ACTIVATION_BYTES


def cache(mixer: ShortConv, tp: int, kv_bytes: float) -> Cache:
    """The state of a sequence in one layer on one GPU."""
    return Cache(fixed_bytes_per_sequence=_state_bytes(mixer, tp))


def _work(mixer: ShortConv, tp: int, rows: Numeric, states: Numeric) -> Work:
    moved = READ_AND_WRITE * (states * _state_bytes(mixer, tp) + rows * mixer.width / tp * ACTIVATION_BYTES)
    return Work(rule="state", flops=rows * FLOPS_PER_MAC * mixer.kernel * mixer.width / tp, bytes=moved)


def decode(mixer: ShortConv, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric) -> Work:
    """The work of one decode step. It reads and writes the state of each sequence once."""
    return _work(mixer, tp, sequences, sequences)


def prefill(
    mixer: ShortConv, tp: int, kv_bytes: float, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> Work:
    """The work of a prefill chunk: linear in tokens."""
    return _work(mixer, tp, sequences * tokens, sequences)


def small_kernels(mixer: ShortConv, tp: int) -> tuple[tuple[str, float], ...]:
    """The two gates of one layer."""
    return (("gates", 2 * GATE_PASSES * mixer.width / tp),)


def why_not(mixer: ShortConv, tp: int) -> str | None:
    """The reason why the channels cannot be split over `tp` GPUs, or None."""
    return None if mixer.width % tp == 0 else f"{mixer.width} channels do not divide by TP{tp}"
