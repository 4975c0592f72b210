"""A model as its config states it: attention and MLP kinds by layer, vocabulary, precision. Read by `sizing.catalog.config`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from sizing.specs.values import OneFile, Positive, Sourced, Spec, Text

# What a weight matrix belongs to; quantised checkpoints name the ones that stay in 16 bit.
Role = Literal["attention", "dense_mlp", "shared_expert", "expert", "router", "embedding", "lm_head", "norm"]


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of attention over keys and values: `kv_heads` are `q_heads` in multi-head attention, 1 in multi-query; head_dim explicit.

    `output_gate` adds a gate as wide as the query projection; `shared_kv` (key = value) stores and projects one of
    the two; `reuses_cache` marks a layer that reads an earlier layer's cache and has no K/V of its own; `norm_heads` norms each
    head's query and key. `value_dim` is the width of a value where it is not that of a key; `index_dim` that of a key cached beside
    them, by which blocks are chosen.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    output_gate: bool = False
    shared_kv: bool = False
    reuses_cache: bool = False
    norm_heads: bool = False
    value_dim: int | None = None
    index_dim: int = 0


@dataclass(frozen=True, slots=True)
class GqaAttention(Heads):
    """Attention to the whole context. `norm_over_heads` norms queries and keys over all heads at once, for which ranks sum up."""

    norm_over_heads: bool = False
    kind: Literal["gqa"] = "gqa"


@dataclass(frozen=True, slots=True)
class SlidingWindowAttention(Heads):
    """Attention that sees the last `window` tokens only, or, where it is `chunked`, those of its own chunk of `window` tokens."""

    window: int = 0
    chunked: bool = False
    kind: Literal["sliding_window"] = "sliding_window"


@dataclass(frozen=True, slots=True)
class BidirectionalAttention(Heads):
    """Attention of an encoder: multi-head, each token sees all of its prompt, and nothing is cached."""

    bias: bool = True
    kind: Literal["bidirectional"] = "bidirectional"


@dataclass(frozen=True, slots=True)
class MlaAttention:
    """Multi-head latent attention: one latent of kv_lora_rank + rope per token, shared by all heads.

    `index_heads`, `index_head_dim` and `index_topk` describe a sparse-attention indexer (DeepSeek-V3.2, GLM-5); 0 where absent.
    """

    q_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    output_gate: bool = False
    kind: Literal["mla"] = "mla"


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Gated delta rule and its kin: a fixed state of value_heads x key_head_dim x value_head_dim per sequence.

    `gate_rank` > 0 means that output and decay gates are low-rank (Kimi linear attention), else full width.
    """

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    gate_rank: int = 0
    state_bytes: int = 4
    kind: Literal["linear"] = "linear"


@dataclass(frozen=True, slots=True)
class SsmAttention:
    """Mamba-2: a fixed state of heads x head_dim x state_size per sequence, and a short convolution's tail."""

    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_kernel: int
    state_bytes: int = 4
    kind: Literal["ssm"] = "ssm"


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A gated short convolution (LFM2): no attention, the last `kernel` - 1 inputs of each channel are the state."""

    width: int
    kernel: int
    kind: Literal["short_conv"] = "short_conv"


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention over a compressed cache and a window (DeepSeek-V4): one latent a token, and one for every `ratio` tokens.

    A `ratio` of 0 leaves the window alone. With `index_heads` a query attends to the `index_topk` best compressed entries, else
    to all. `page_share` is the share of a layer in the engine's common page of all layers, `few_share` and `many_share` those of
    layers that compress by 4 and by 128.
    """

    q_heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    ratio: int
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    page_share: float = 1.0
    few_share: float = 0.0
    many_share: float = 0.0
    kind: Literal["compressed"] = "compressed"


Attention = (
    GqaAttention
    | SlidingWindowAttention
    | BidirectionalAttention
    | MlaAttention
    | CompressedAttention
    | LinearAttention
    | SsmAttention
    | ShortConv
)


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """Two projections, or three where gated (SwiGLU and its kin)."""

    intermediate: int
    gated: bool
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Routed experts, `experts_per_token` of them hit by each token, beside an always-on shared expert (0: none).

    `latent` is the width in which the routed experts work where it differs from the hidden size. `redundant` copies of popular
    experts are held besides, as an engine that balances load is told to.
    """

    experts: int
    experts_per_token: int
    intermediate: int
    gated: bool
    shared_intermediate: int = 0
    shared_gate: bool = False
    latent: int | None = None
    bias: bool = False
    redundant: int = 0

    @property
    def slots(self) -> int:
        """Experts that are held, copies counted."""
        return self.experts + self.redundant


Mlp = DenseMlp | MoeMlp


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A kind of layer: a mixer (attention, linear, state space) or none, and the MLPs that follow it, if any."""

    mixer: Attention | None
    mlps: tuple[Mlp, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A share of a role's weights in another precision than the rest of the checkpoint, or in 16 bit (`precision` None)."""

    role: Role
    precision: str | None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How a checkpoint stores its weights: precision, the roles that stay in 16 bit, block width, cache precision.

    `weight_only` marks methods whose products run at 16 bit whatever the hardware (GPTQ, AWQ). `stored` holds what differs
    from `precision` and is no whole role in 16 bit. `bits` are those of one value, scales included, where groups are stated.
    """

    precision: str
    kept_16bit: frozenset[str] = frozenset({"embedding", "lm_head", "norm", "router"})
    block: int | None = None
    kv_precision: str | None = None
    method: str | None = None
    weight_only: bool = False
    stored: tuple[Stored, ...] = ()
    bits: float | None = None


@dataclass(frozen=True, slots=True)
class Vision:
    """A vision tower as the config states it; `field` is the one that says how images become tokens, None where none does.

    `merge` patches a side make one token, `tokens` are those of an image where they are fixed, and `image_pixels` is the side of
    the image, or the tile, that the tower takes. An engine's profile run encodes a video of `video_patches` patches in time, 1
    where none is known. The largest image or video has `largest_tokens` of `largest_patches`, None where no rule was read for it.
    """

    hidden_size: int
    layers: int
    patch_pixels: int
    field: str | None = None
    merge: int = 1
    tokens: int | None = None
    image_pixels: int | None = None
    video_patches: int = 1
    largest_tokens: int | None = None
    largest_patches: int = 0


@dataclass(frozen=True, slots=True)
class Mtp:
    """Multi-token prediction as the config's `field` states it: so many modules (0: none), each of `layers`.

    They are weights of the checkpoint that engines load only to draft with. `kept_16bit`: not quantised with the others.
    """

    modules: int
    layers: tuple[LayerKind, ...]
    field: str
    kept_16bit: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """A model's architecture. `layers` indexes into `kinds`, one entry a layer, first to last.

    `extra_parameters` are held in 16 bit on every pipeline stage's first rank and take no part in a text step
    (learned positions, a vision tower, whose part is `vision_parameters`). `checkpoint_bytes` is the exact size of the weights where an index (`checkpoint_index`, a file) gives it,
    which may be `checkpoint_ratio` times off what the config computes, either way, and no more. `mtp` is None where the config
    is silent. `rotary_values` are those of the tables of rotary embeddings. `pooled`: it serves a vector or scores of a whole
    prompt in place of tokens, and has no output head; an `encoder` can do nothing else. `streams` are those of the hidden state,
    which hyper-connections keep in parallel (DeepSeek-V4).
    """

    name: str
    kinds: tuple[LayerKind, ...]
    layers: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    max_position: int
    activation_precision: Literal["fp32", "fp16", "bf16"]
    quantisation: Quantisation
    parallel_blocks: bool = False
    extra_parameters: int = 0
    vision_parameters: int = 0
    vision: Vision | None = None
    mtp: Mtp | None = None
    pooled: bool = False
    encoder: bool = False
    rotary_values: int = 0
    streams: int = 1
    checkpoint_bytes: int | None = None
    checkpoint_index: str | None = None
    checkpoint_ratio: float = math.inf
    source: str = ""
    notes: tuple[str, ...] = field(default=())


class Checkpoint(Spec):
    """One published checkpoint, a line of workloads/models/_checkpoints.csv: a profile, and what is not as that has it.

    `stored` and `kept` are words of CheckpointRules, `head` says that a tied head is stored apart, `task` what it is for where
    it does not generate. `evidence` from memory is a guess.
    """

    name: Text
    profile: Text
    positions: Annotated[int, Field(gt=0)] | None = None
    stored: Text | None = None
    kept: tuple[Text, ...] = ()
    cache: Literal["fp8"] | None = None
    vocabulary: Annotated[int, Field(gt=0)] | None = None
    head: Literal["apart"] | None = None
    task: Literal["embed", "score"] | None = None
    evidence: Literal["read", "several", "memory"]
    source: Text


class CheckpointRules(OneFile, Sourced):
    """The file workloads/models/_checkpoints.yaml: the words of the checkpoints' table.

    `storages` are values of quantization_config, `kept` lists of modules in 16 bit; `largest_ratio` says how far an index may
    be from the config beside it.
    """

    FILE = "workloads/models/_checkpoints.yaml"

    largest_ratio: Annotated[float, Field(gt=1, le=100, strict=True)]
    storages: dict[str, dict[str, Any]]
    kept: dict[str, tuple[Text, ...]]


class ModelFile(Spec):
    """One model profile, a file of workloads/models: names, sources, and `config` with keys as published in config.json.

    `task` is what the model is for where it does not generate.
    """

    name: Text
    aliases: tuple[Text, ...] = ()
    config: dict[str, Any]
    parameters_b: Positive
    active_parameters_b: Positive | None = None
    task: Literal["embed", "score"] | None = None
    quality: Text
    source: Text
    date: Text
    note: Text | None = None
