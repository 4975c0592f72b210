"""A model as its config states it: attention and MLP of each layer, vocabulary, precision. `sizing.catalog.config` reads it."""

import math
from dataclasses import field
from typing import Annotated, Any, Literal, NamedTuple

from sizing.specs.frozen import Frozen
from sizing.specs.spec import Spec
from sizing.specs.values import OneFile, Positive, PositiveInt, Sourced, Text, above, written
from sizing.specs.workload import Precision

# The part of a model that a weight matrix belongs to. Quantised checkpoints name the parts that stay in 16 bit.
Role = Literal["attention", "dense_mlp", "shared_expert", "expert", "router", "embedding", "lm_head", "norm"]


class Heads(Frozen):
    """Attention heads: `kv_heads` equals `q_heads` in multi-head attention and is 1 in multi-query attention.

    `output_gate` adds a gate as wide as the query projection. `shared_kv`: key and value are the same, stored and projected once.
    `reuses_cache`: the layer reads an earlier layer's cache and has no K/V of its own. `norm_heads`: each head's query and key
    are normalised. `value_dim` is the width of a value if it differs from the key's. `index_dim` is the width of an additional
    cached key that selects cache blocks.
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


class GqaAttention(Heads):
    """Attention to the whole context. `norm_over_heads` normalises over all heads at once, so ranks must add up their sums."""

    norm_over_heads: bool = False
    kind: Literal["gqa"] = "gqa"


class SlidingWindowAttention(Heads):
    """Attention to the last `window` tokens or, if `chunked`, to the token's own chunk of `window` tokens."""

    window: int = 0
    chunked: bool = False
    kind: Literal["sliding_window"] = "sliding_window"


class BidirectionalAttention(Heads):
    """Multi-head attention of an encoder. Each token sees the whole prompt, and nothing is cached."""

    bias: bool = True
    kind: Literal["bidirectional"] = "bidirectional"


class MlaAttention(Frozen):
    """Multi-head latent attention: one latent of kv_lora_rank + rope per token, shared by all heads.

    `index_heads`, `index_head_dim` and `index_topk` describe a sparse-attention indexer (DeepSeek-V3.2, GLM-5); 0 without one.
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


class LinearAttention(Frozen):
    """Gated delta rule and similar: a fixed state of value_heads x key_head_dim x value_head_dim per sequence.

    `gate_rank` > 0: output and decay gates are low-rank (Kimi linear attention). 0: they have full width.
    """

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    gate_rank: int = 0
    state_bytes: int = 4
    kind: Literal["linear"] = "linear"


class SsmAttention(Frozen):
    """Mamba-2: a fixed state of heads x head_dim x state_size per sequence, and the last inputs of a short convolution."""

    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_kernel: int
    state_bytes: int = 4
    kind: Literal["ssm"] = "ssm"


class ShortConv(Frozen):
    """A gated short convolution (LFM2), without attention. Its state is the last `kernel` - 1 inputs of each channel."""

    width: int
    kernel: int
    kind: Literal["short_conv"] = "short_conv"


class CompressedAttention(Frozen):
    """Attention over a compressed cache and a window (DeepSeek-V4): one latent a token, and one for every `ratio` tokens.

    With a `ratio` of 0 there is only the window. With `index_heads` a query attends to the `index_topk` best compressed entries,
    otherwise to all. `page_share` is the layer's share of the page that the engine allocates for all layers together. `few_share`
    and `many_share` are the shares of layers that compress by 4 and by 128.
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


class DenseMlp(Frozen):
    """Two projections, or three if `gated` (SwiGLU and similar)."""

    intermediate: int
    gated: bool
    bias: bool = False


class MoeMlp(Frozen):
    """Routed experts, of which each token uses `experts_per_token`, and a shared expert for all tokens (0: none).

    `latent` is the width of the routed experts' inputs if it differs from the hidden size. `redundant` is the number of extra
    copies of popular experts, which an engine holds to balance load.
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
        """The number of experts held, copies included."""
        return self.experts + self.redundant


Mlp = DenseMlp | MoeMlp


class LayerKind(Frozen):
    """A kind of layer: a mixer (attention, linear, state space) or none, and the MLPs that follow it, if any."""

    mixer: Attention | None
    mlps: tuple[Mlp, ...]


class Stored(NamedTuple):
    """The share of a role's weights that has another precision than the checkpoint (`precision` None: 16 bit)."""

    role: Role
    precision: str | None
    share: float = 1.0


class Quantisation(NamedTuple):
    """How a checkpoint stores its weights: precision, the roles that stay in 16 bit, block width, cache precision.

    `weight_only` marks methods whose products run at 16 bit on any hardware (GPTQ, AWQ). `stored` lists weights that differ from
    `precision`, except whole roles in 16 bit. `bits` is the size of one value including scales, if groups are stated.
    """

    precision: str
    kept_16bit: frozenset[str] = frozenset({"embedding", "lm_head", "norm", "router"})
    block: int | None = None
    kv_precision: str | None = None
    method: str | None = None
    weight_only: bool = False
    stored: tuple[Stored, ...] = ()
    bits: float | None = None


class Vision(NamedTuple):
    """A vision tower as the config states it. `field` is the config field that says how images become tokens, or None.

    A token covers `merge` x `merge` patches. `tokens` is the number of tokens of an image if it is fixed. `image_pixels` is the
    side of the image or tile that the tower takes. An engine's profile run encodes a video of `video_patches` patches in time (1
    if unknown). The largest image or video has `largest_tokens` (None without a rule) and `largest_patches`.
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


class Mtp(Frozen):
    """Multi-token prediction as the config's `field` states it: the number of `modules` (0: none), each with `layers`.

    Engines load these weights only for drafting. `kept_16bit`: they are not quantised with the other weights.
    """

    modules: int
    layers: tuple[LayerKind, ...]
    field: str
    kept_16bit: bool = False


class Model(Frozen):
    """A model's architecture. `layers` holds an index into `kinds` for each layer, first to last.

    `extra_parameters` are held in 16 bit on the first pipeline stage and take no part in a text step (learned positions, a
    vision tower). The part
    `vision_parameters` of them belongs to the vision tower. `checkpoint_bytes` is the exact size of the weights from the index
    file `checkpoint_index`, if there is one. It may differ from the size that the config gives by a factor of up to
    `checkpoint_ratio`. `mtp` is None if the config does not mention it. `rotary_values` counts the values of the rotary tables.
    `pooled`: the model returns a vector or scores for a whole prompt instead of tokens, and has no output head. An `encoder` can
    do nothing else. `unstretched` is the number of positions before LongRoPE stretched them, None without it. `streams` is the number of parallel hidden states of hyper-connections (DeepSeek-V4).
    `norms_after`: outputs of mixers and MLPs are normalised before they are added. Each layer takes in `layer_inputs` values of
    embeddings of its own (Gemma 3n and 4).
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
    unstretched: int | None = None
    streams: int = 1
    norms_after: bool = False
    layer_inputs: int = 0
    checkpoint_bytes: int | None = None
    checkpoint_index: str | None = None
    checkpoint_ratio: float = math.inf
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    def __hash__(self) -> int:
        """Hash the name alone, because much is looked up by model and a model has many fields."""
        return hash(self.name)


class Checkpoint(Spec):
    """One published checkpoint, a line of workloads/models/_checkpoints.csv: a profile, and the differences from it.

    `stored` and `kept` are words of CheckpointRules. `head` says that a tied head is stored separately. `task` is the purpose of
    a model that does not generate. `evidence` from memory means a guess.
    """

    name: Text
    profile: Text
    positions: Annotated[PositiveInt, written(int)] | None = None
    stored: Text | None = None
    kept: tuple[Text, ...] = ()
    cache: Literal["fp8"] | None = None
    vocabulary: Annotated[PositiveInt, written(int)] | None = None
    head: Literal["apart"] | None = None
    task: Literal["embed", "score"] | None = None
    evidence: Literal["read", "several", "memory"]
    source: Text


class CheckpointRules(OneFile, Sourced):
    """The file workloads/models/_checkpoints.yaml: the words of the checkpoints' table.

    `storages` maps words to values of quantization_config, `kept` maps words to lists of modules in 16 bit. `largest_ratio` is
    the largest allowed ratio between the size in an index and the size that its config gives.
    """

    FILE = "workloads/models/_checkpoints.yaml"

    largest_ratio: Annotated[float, above(1, 100)]
    storages: dict[str, dict[str, Any]]
    kept: dict[str, tuple[Text, ...]]


class ModelFile(Spec):
    """One model profile, a file of workloads/models: names, sources, and `config` with keys as published in config.json.

    `task` is the purpose of a model that does not generate.
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


class NamedQuantisation(Spec):
    """A suffix of checkpoint names with its weight precision. It may be limited to certain `organisations`."""

    suffix: Text
    precision: Precision
    organisations: tuple[Text, ...] = ()
    says: Text


class NameRules(OneFile, Sourced):
    """The vocabulary of checkpoint names."""

    FILE = "workloads/models/_suffixes.yaml"

    name: Text
    prefixes: tuple[Text, ...]
    stages: tuple[Text, ...]
    file_forms: tuple[Text, ...]
    release_date: Text
    renamed: dict[Text, Text]
    respelled: dict[Text, Text]
    quantisations: tuple[NamedQuantisation, ...]
