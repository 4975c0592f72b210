"""Attention kinds, one file each, and the terms in which they describe themselves: weight matrices, cache, work.

A file (gqa with and without windows, or bidirectional, mla, linear, ssm and others) has the functions of `Kind`; `pick` imports
the file of a layer's kind. To add a kind, add a file, and its type in `sizing.specs.model`.
"""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from sizing.specs.model import Role

Numeric = float | NDArray[np.float64]

FLOPS_PER_MAC = 2  # one multiply and one add
KEY_AND_VALUE = 2
GATE_PASSES = 3  # a gate reads its values and the tensor that it scales, and writes the result
READ_AND_WRITE = 2  # a state, or a tensor that one kernel passes on
ACTIVATION_BYTES = 2  # activations travel between kernels at 16 bit


class Matrix(NamedTuple):
    """A weight matrix as one GPU holds it: `inputs` x `outputs`, number of equal `copies` (experts), length of its bias."""

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


class WindowBlocks(NamedTuple):
    """Blocks that hold a window of a sequence, in addition to its growing cache."""

    block_bytes: float
    block_tokens: int
    window_tokens: int

    def bytes_of(self, slots: float, chunk_tokens: int) -> float:
        """Bytes of a window and the chunk in flight, in the window's own blocks, plus one block."""
        held = min(self.window_tokens - 1 + chunk_tokens, slots)
        return self.block_bytes * (math.ceil(held / self.block_tokens) + 1)


class Cache(NamedTuple):
    """Cache of one layer on one GPU: bytes per token, for at most `window_tokens` (None: all), and a fixed part.

    `windows` are held in addition. The fixed part grows by `bytes_per_drafted` for each drafted token, which the
    convolution before a state keeps.
    """

    bytes_per_token: float = 0.0
    window_tokens: int | None = None
    fixed_bytes_per_sequence: float = 0.0
    bytes_per_drafted: float = 0.0
    windows: tuple[WindowBlocks, ...] = ()


class Work(NamedTuple):
    """Attention work of one layer in one step on one GPU.

    `flops` and `bytes` are of the whole batch. `rule` names how it is timed; `head_dim` and `q_heads` select the measured
    row, and query heads share the `kv_heads`. `prompt_tokens` is the length on which prefill efficiency depends,
    `context_tokens` the cached tokens that a decoding sequence reads. The batch has `sequences`, each with `new_tokens` in
    prefill; a decoding sequence has `queries` tokens. `window` is set if it limits the context. `causal` means that a token
    attends only to itself and earlier tokens.

    For latents, `token_bytes` are read per cached token and `pair_values` are multiplied per pair. With sparse attention,
    `index_heads` score all tokens, and `chosen` of them are attended to.
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
    """Key/value heads on one GPU (vLLM, SGLang, TensorRT-LLM alike).

    They are split over GPUs, or replicated if there are fewer heads than GPUs.
    """
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


def of_whole_sequence(mixer: object) -> tuple[int, int, int]:
    """The `exchanged` of a recurrent state. Raises ValueError, because a state cannot be split by tokens."""
    raise ValueError("a recurrent state is of a whole sequence")


def causal_pairs(tokens: Numeric, prior_tokens: Numeric) -> Numeric:
    """Query-key pairs of `tokens` new tokens after `prior_tokens`: each token sees itself and all earlier ones."""
    return tokens * (prior_tokens + (tokens + 1) / 2)


def windowed_pairs(tokens: Numeric, prior_tokens: Numeric, window_tokens: int) -> Numeric:
    """Query-key pairs under a window: token j sees min(prior + j, window) keys, including its own."""
    growing = np.clip(window_tokens - prior_tokens, 0.0, tokens)
    return causal_pairs(growing, prior_tokens) + (tokens - growing) * window_tokens


def chunked_pairs(tokens: Numeric, prior_tokens: Numeric, chunk_tokens: int) -> Numeric:
    """Query-key pairs where a token sees the tokens of its own chunk up to itself."""

    def until(place: Numeric) -> Numeric:
        chunks, rest = np.divmod(place, chunk_tokens)
        return chunks * causal_pairs(chunk_tokens, 0.0) + causal_pairs(rest, 0.0)

    return until(prior_tokens + tokens) - until(prior_tokens)


FALLS = 1 / 16  # share of a chunk


def in_chunk(context_tokens: Numeric, chunk_tokens: int) -> Numeric:
    """Tokens that a sequence sees in its own chunk: all of the first, then half of one, the mean over places in a chunk.

    The fall from the one to the other takes a sixteenth of a chunk, so that the time has corners and no steps.
    """
    falling = chunk_tokens - (context_tokens - chunk_tokens) / (2 * FALLS)
    return np.minimum(context_tokens, np.maximum(falling, chunk_tokens / 2))


class Kind(Protocol):
    """The functions of each attention file. `mixer` is the spec of this kind, `tp` the number of tensor-parallel GPUs."""

    def matrices(self, mixer: Any, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
        """The weight matrices of one layer on one GPU."""

    def cache(self, mixer: Any, tp: int, kv_bytes: float) -> Cache:
        """The cache of one layer on one GPU. A value takes `kv_bytes` bytes."""

    def decode(self, mixer: Any, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric) -> Work:
        """The work of one decode step of one layer on one GPU, over the whole batch."""

    def prefill(
        self, mixer: Any, tp: int, kv_bytes: float, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
    ) -> Work:
        """The work of `tokens` new prompt tokens in each of `sequences` prompts with `prior_tokens` cached."""

    def small_kernels(self, mixer: Any, tp: int) -> tuple[tuple[str, float], ...]:
        """Small kernels of one layer on one GPU, each with the values that it moves per token.

        They exclude projections and attention, and the rotary embedding and cache write that every kind has.
        """

    def exchanged(self, mixer: Any) -> tuple[int, int, int]:
        """(query heads, values per query, values per output) that GPUs with parts of one cache exchange in decode.

        Raises ValueError if a cache cannot be split into parts.
        """

    def why_not(self, mixer: Any, tp: int) -> str | None:
        """The reason why this kind cannot be split over `tp` GPUs, or None."""


@cache
def pick(kind: str) -> Kind:
    """Import only the module of attention kind `kind`."""
    name = "gqa" if kind in ("sliding_window", "bidirectional") else kind
    return cast(Kind, importlib.import_module(f"sizing.model.attention.{name}"))
