"""Attention over a compressed cache and a window (DeepSeek-V4). One latent serves all heads, so each GPU holds it whole.

Every layer keeps the latents of its last `window` tokens. A layer with a compression ratio also keeps one latent per
`ratio` tokens and, while it compresses, the states of the last ones. The engine pages all of them in blocks of one size for
all layers. Sizes and block lengths are those of vLLM 0.24 (vllm/v1/core/kv_cache_utils.py,
vllm/models/deepseek_v4/attention.py); they reproduce the log of vLLM issue 44376 exactly.
"""

from __future__ import annotations

import math

import numpy as np

from sizing.model.attention import (
    FLOPS_PER_MAC,
    Cache,
    Matrix,
    Numeric,
    WindowBlocks,
    Work,
    causal_pairs,
    windowed_pairs,
)
from sizing.specs.engine import CompressedRule
from sizing.specs.model import CompressedAttention

BLOCK_TOKENS = 256
ALIGNED_BYTES = 576
FP8_SCALE_BYTES = 8  # scales of a latent's FP8 part; the rotary part stays at 16 bit
INDEX_SCALE_BYTES = 4
RATIOS = (4, 128)
# (tokens of a block, tokens of a window): two groups for the window itself, then the states of both compressors
WINDOWS = ((64, 128), (64, 128), (4, 8), (8, 128))
STATE_BYTES = 4
RINGS = {4: 8 / 128, 128: 1}  # compressor states that SGLang keeps per token of a window, by ratio


def matrices(mixer: CompressedAttention, hidden_size: int, tp: int) -> tuple[Matrix, ...]:
    """The weight matrices of one layer on one GPU.

    Down-projections and compressors are whole, the others are split by heads or groups.
    """
    width, groups = mixer.q_heads / tp * mixer.head_dim, mixer.o_groups / tp
    found = [
        Matrix("q_a_proj", "attention", hidden_size, mixer.q_lora_rank),
        Matrix("q_b_proj", "attention", mixer.q_lora_rank, width),
        Matrix("kv_proj", "attention", hidden_size, mixer.head_dim),
        Matrix("o_a_proj", "attention", width / groups, groups * mixer.o_lora_rank),
        Matrix("o_b_proj", "attention", groups * mixer.o_lora_rank, hidden_size),
    ]
    if mixer.ratio:
        states = 2 if mixer.index_heads else 1
        found.append(Matrix("compressor", "norm", hidden_size, 2 * states * mixer.head_dim))
        found.append(Matrix("compressor_positions", "norm", mixer.ratio, states * mixer.head_dim))
    if mixer.index_heads:
        found += [
            Matrix("index_q_proj", "attention", mixer.q_lora_rank, mixer.index_heads * mixer.index_head_dim),
            Matrix("index_compressor", "norm", hidden_size, 4 * mixer.index_head_dim + mixer.index_heads),
        ]
    return tuple(found)


def _latent_bytes(mixer: CompressedAttention, kv_bytes: float) -> float:
    if kv_bytes > 1:
        return mixer.head_dim * kv_bytes
    return (mixer.head_dim - mixer.rope_dim) * kv_bytes + 2 * mixer.rope_dim + FP8_SCALE_BYTES


def _index_bytes(mixer: CompressedAttention, kv_bytes: float) -> float:
    return mixer.index_head_dim * kv_bytes + (INDEX_SCALE_BYTES if kv_bytes <= 1 else 0)


def _aligned(size: float) -> float:
    return math.ceil(size / ALIGNED_BYTES) * ALIGNED_BYTES


def _pages(mixer: CompressedAttention, kv_bytes: float) -> tuple[float, float]:
    """(bytes of a block of a layer that compresses by 4, with its index keys; the same for one that compresses by 128)."""
    latent, index = _latent_bytes(mixer, kv_bytes), _index_bytes(mixer, kv_bytes)
    by_few, by_many = (BLOCK_TOKENS // ratio for ratio in RATIOS)
    return _aligned(by_few * latent) + _aligned(by_few * index), _aligned(by_many * latent)


def cache(mixer: CompressedAttention, tp: int, kv_bytes: float) -> Cache:
    """The cache of one layer on one GPU: its share of the common pages, for any `tp`."""
    return _paged(sum(_pages(mixer, kv_bytes)) * mixer.page_share)


def _paged(page: float) -> Cache:
    return Cache(
        bytes_per_token=page / BLOCK_TOKENS,
        windows=tuple(WindowBlocks(page, block_tokens=block, window_tokens=window) for block, window in WINDOWS),
    )


def cache_of(mixer: CompressedAttention, kv_bytes: float, rule: CompressedRule, *, speculating: bool) -> Cache:
    """The cache of one layer on one GPU in `packed` blocks, or by `tokens`. A draft doubles the rings of states.

    Sources: vLLM 0.33 (vllm/v1/core/kv_cache_planning.py), SGLang 0.5.13 (model_executor/pool_configurator.py).
    """
    latent, index = _latent_bytes(mixer, kv_bytes), _index_bytes(mixer, kv_bytes)
    if rule.pages == "packed":
        few, many = _pages(mixer, kv_bytes)
        return _paged(mixer.few_share * few + mixer.many_share * many)
    kept, rings = 0.0, 2 if speculating else 1
    if mixer.ratio:
        kept = (latent + (index if mixer.index_heads else 0)) / mixer.ratio
        widths = 4 * (mixer.head_dim + mixer.index_head_dim) if mixer.index_heads else 2 * mixer.head_dim
        kept += rule.window_share * rings * RINGS[mixer.ratio] * widths * STATE_BYTES
    return Cache(bytes_per_token=rule.window_share * latent + kept)


def _attended(mixer: CompressedAttention, context: Numeric) -> Numeric:
    """Compressed entries that one query attends to."""
    held = context / mixer.ratio if mixer.ratio else 0.0 * context
    return np.minimum(held, mixer.index_topk) if mixer.index_heads else held


def _flops(mixer: CompressedAttention, tp: int, pairs: Numeric, indexed: Numeric) -> Numeric:
    heads = 2 * FLOPS_PER_MAC * mixer.q_heads / tp * mixer.head_dim * pairs
    return heads + FLOPS_PER_MAC * mixer.index_heads * mixer.index_head_dim * indexed


def decode(mixer: CompressedAttention, tp: int, kv_bytes: float, sequences: Numeric, context_tokens: Numeric) -> Work:
    """The work of one decode step over the window and the selected compressed entries; the indexer scores all entries."""
    pairs = np.minimum(context_tokens, mixer.window) + _attended(mixer, context_tokens)
    indexed = context_tokens / mixer.ratio if mixer.index_heads else 0.0 * context_tokens
    moved = pairs * _latent_bytes(mixer, kv_bytes) + indexed * _index_bytes(mixer, kv_bytes)
    return Work(
        rule="mla_decode",
        flops=_flops(mixer, tp, sequences * pairs, sequences * indexed),
        bytes=sequences * moved,
        head_dim=mixer.head_dim,
        q_heads=mixer.q_heads // tp,
    )


def prefill(
    mixer: CompressedAttention, tp: int, kv_bytes: float, sequences: Numeric, tokens: Numeric, prior_tokens: Numeric
) -> Work:
    """The work of a prefill chunk: windowed pairs, and compressed entries at the middle of the chunk."""
    middle = prior_tokens + tokens / 2
    pairs = windowed_pairs(tokens, prior_tokens, mixer.window) + tokens * _attended(mixer, middle)
    indexed = causal_pairs(tokens, prior_tokens) / mixer.ratio if mixer.index_heads else 0.0 * tokens
    seen = tokens + prior_tokens
    kept = seen / mixer.ratio if mixer.ratio else 0.0 * seen
    activations = 2 * 2 * mixer.q_heads / tp * mixer.head_dim * tokens
    return Work(
        rule="prefill_attention",
        flops=sequences * _flops(mixer, tp, pairs, indexed),
        bytes=sequences * ((kept + tokens) * _latent_bytes(mixer, kv_bytes) + activations),
        head_dim=mixer.head_dim,
        prompt_tokens=seen,
    )


def small_kernels(mixer: CompressedAttention, tp: int) -> tuple[tuple[str, float], ...]:
    """The compressor of one layer, if any: it reads keys and gates and writes states."""
    return (("compressor", 4.0 * mixer.head_dim),) if mixer.ratio else ()


def exchanged(mixer: CompressedAttention) -> tuple[int, int, int]:
    """(query heads, values per query, values per output) that GPUs with parts of one cache exchange in decode."""
    return mixer.q_heads, mixer.head_dim, mixer.head_dim


def why_not(mixer: CompressedAttention, tp: int) -> str | None:
    """The reason why heads and groups of the output cannot be split over `tp` GPUs, or None. Latents are replicated."""
    if mixer.q_heads % tp:
        return f"{mixer.q_heads} attention heads are not divisible by TP{tp}"
    return f"{mixer.o_groups} output groups are not divisible by TP{tp}" if mixer.o_groups % tp else None
