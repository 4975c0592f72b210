"""The terms in which an attention kind states itself: weight matrices, cache, work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sizing.specs.model import Role

Numeric = float | NDArray[np.float64]

FLOPS_PER_MAC = 2  # one multiply and one add
KEY_AND_VALUE = 2
GATE_PASSES = 3  # a gate reads its values and what it scales, and writes that


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix as one GPU holds it: `inputs` x `outputs`, `copies` alike (experts), and a bias vector's length."""

    name: str
    role: Role
    inputs: float
    outputs: float
    copies: float = 1
    bias: float = 0

    @property
    def parameters(self) -> float:
        """Weights and biases of all copies."""
        return self.copies * (self.inputs * self.outputs + self.bias)


@dataclass(frozen=True, slots=True)
class WindowBlocks:
    """Blocks that hold a window of a sequence, beside its growing cache: bytes and tokens of one, and of the window."""

    block_bytes: float
    block_tokens: int
    window_tokens: int


@dataclass(frozen=True, slots=True)
class Cache:
    """Cache of one layer on one GPU: bytes a token, for at most `window_tokens` of them (None: all), and a fixed part.

    `windows` are kept beside it.
    The fixed part grows by `bytes_per_drafted` for each token that is drafted: the convolution before a state keeps them.
    """

    bytes_per_token: float = 0.0
    window_tokens: int | None = None
    fixed_bytes_per_sequence: float = 0.0
    bytes_per_drafted: float = 0.0
    windows: tuple[WindowBlocks, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """Attention work of one layer in one step on one GPU.

    `flops` and `bytes` are of the whole batch; `rule` names the efficiency that times it; `head_dim` and `q_heads`
    choose the measured row; `kv_heads` share them; `prompt_tokens` is the length that prefill efficiency depends on,
    `context_tokens` the cached tokens that a decoding sequence reads. `sequences` are those of the batch, each with `new_tokens` in
    prefill; `window` is set where it cuts contexts short, and `causal` where a token sees none after it. A sequence
    that decodes has `queries` tokens. Of latents, `token_bytes` are read for each cached token and `pair_values` multiplied for each pair; `chosen` of them are attended
    to where `index_heads` score all.
    """

    rule: str
    flops: Numeric
    bytes: Numeric
    head_dim: int = 0
    q_heads: float = 0
    kv_heads: int = 0
    prompt_tokens: Numeric = 0.0
    context_tokens: Numeric = 0.0
    sequences: Numeric = 0.0
    new_tokens: Numeric = 0.0
    window: int = 0
    causal: bool = True
    queries: int = 1
    token_bytes: float = 0.0
    pair_values: int = 0
    chosen: int = 0
    index_heads: int = 0


def kv_heads_per_gpu(kv_heads: int, tp: int) -> int:
    """Key/value heads on one GPU: split while they last, then replicated (vLLM, SGLang, TensorRT-LLM alike)."""
    return max(1, kv_heads // tp)


def heads_why_not(q_heads: int, kv_heads: int, tp: int) -> str | None:
    """Why `q_heads` and `kv_heads` cannot be split over `tp` GPUs, or None. Engines check this at start-up."""
    if q_heads % tp:
        return f"{q_heads} attention heads are not divisible by TP{tp}"
    if kv_heads >= tp and kv_heads % tp:
        return f"{kv_heads} KV heads are not divisible by TP{tp}"
    if kv_heads < tp and tp % kv_heads:
        return f"TP{tp} is not a multiple of the {kv_heads} KV heads, so they cannot be replicated evenly"
    return None


def causal_pairs(tokens: Numeric, prior_tokens: Numeric) -> Numeric:
    """Query-key pairs of `tokens` new tokens after `prior_tokens`: each sees all before it and itself."""
    return tokens * (prior_tokens + (tokens + 1) / 2)


def windowed_pairs(tokens: Numeric, prior_tokens: Numeric, window_tokens: int) -> Numeric:
    """Query-key pairs under a window: token j sees min(prior + j, window) keys, itself included."""
    growing = np.clip(window_tokens - prior_tokens, 0.0, tokens)
    return causal_pairs(growing, prior_tokens) + (tokens - growing) * window_tokens
