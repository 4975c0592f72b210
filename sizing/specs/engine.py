"""A serving engine: its settings by version, and the settings resolved for one version on one deployment."""

from typing import Annotated, Any, Literal, Self

from sizing.specs.engine_time import (
    LAYER_LAUNCHES,
    FrontEnd,
    FusedAllReduce,
    GroupedReads,
    HostTime,
    NormKernels,
    OlderExperts,
    OneShot,
    QuickExperts,
    SpeculationHost,
    VectorAttention,
)
from sizing.specs.spec import Before, Spec
from sizing.specs.units import MICRO
from sizing.specs.values import Flag, Fraction, NonNegative, NonNegativeInt, Positive, PositiveInt, Text, above, within

Sparse = Literal["indexed", "compressed"]
Windows = Literal["alike", "unlike", "chunked"]


class When(Spec):
    """The conditions of a row beyond its version range. An absent condition always holds.

    Memory is the smallest total that nvidia-smi reports, in GiB. The number of GPUs is tp x pp of one replica. `switched`: a
    switch (NVSwitch) joins the GPUs of a server, not PCIe or bridges of two. `states`: the model has recurrent states. `sparse`:
    how a sparse cache holds a token, with an index next to the latent (DeepSeek-V3.2) or compressed (DeepSeek-V4). `windows`:
    whether windowed layers cache as many bytes a token as full layers (`alike`), another number, or attend in chunks.
    `between_nodes`: a pipeline stage spans several nodes.
    """

    min_memory_gib: Positive | None = None
    below_memory_gib: Positive | None = None
    min_gpus: PositiveInt | None = None
    max_gpus: PositiveInt | None = None
    min_tp: PositiveInt | None = None
    min_pp: PositiveInt | None = None
    gpu_contains: tuple[Text, ...] = ()
    gpu_lacks: tuple[Text, ...] = ()
    architecture: tuple[Text, ...] = ()
    attention: Literal["mla", "hybrid", "other"] | None = None
    switched: Flag | None = None
    states: Flag | None = None
    sparse: tuple[Sparse, ...] = ()
    windows: tuple[Windows, ...] = ()
    between_nodes: Flag | None = None


class Row(Spec):
    """One value of a setting: versions `since`..`until` (inclusive; `0.19` covers every 0.19.x), condition, source."""

    since: Text
    until: Text | None = None
    when: When = When()
    value: Any
    source: Text
    evidence: Literal["read", "inferred", "from memory", "measured", "assumed"]
    note: Text | None = None


class GraphMemory(Spec):
    """CUDA-graph memory of one GPU in GiB, with all batch sizes captured: the planning value and the observed range."""

    gib: NonNegative
    low_gib: NonNegative
    high_gib: NonNegative


class AttentionWorkspace(Spec):
    """Workspace of attention kernels: the larger of `mib` and `per_query_value_bytes` for each query value of the token budget.

    It is allocated if the cache format is one of `caches`, or in any format if `caches` is empty.
    """

    mib: Positive
    per_query_value_bytes: NonNegative = 0.0
    caches: tuple[Text, ...] = ()


class ExchangeMessage(Spec):
    """A token on its way to an expert, in DeepEP's layout for low latency: its values, and the larger of header and scales.

    Each expert has space for `copies` messages of a token: to send and to receive, for even and for odd layers.
    """

    value_bytes: PositiveInt
    header_bytes: PositiveInt
    scale_bytes: PositiveInt
    values_per_scale: PositiveInt
    copies: PositiveInt

    def bytes_of(self, values: int) -> float:
        """Bytes of one message of `values` values."""
        return self.value_bytes * values + max(self.header_bytes, self.scale_bytes * values / self.values_per_scale)


class ExchangeBuffers(Spec):
    """Buffers of a GPU for expert-parallel all-to-all: MiB by backend, and with low latency the tokens per rank and a message."""

    high_throughput_mib: NonNegative
    low_latency_mib: NonNegative
    low_latency_tokens: PositiveInt
    message: ExchangeMessage


class ForwardActivation(Spec):
    """Peak of one forward pass, in bytes a token: per_hidden * hidden + the largest of the layers' buffers.

    A dense MLP has per_intermediate * intermediate/tp, a recurrent layer per_state_width * the width of its convolution.
    """

    per_hidden_bytes: NonNegative
    per_intermediate_bytes: NonNegative
    per_state_width_bytes: NonNegative = 0.0


class VisionProfile(Spec):
    """Peak memory of the image encoder in an engine's profile run, in bytes per patch and hidden value.

    `whole_bytes` are on every GPU, `split_bytes` are split over TP.
    """

    whole_bytes: NonNegative
    split_bytes: NonNegative


class LongContext(Spec):
    """Contexts longer than `tokens` switch chunked prefill on, with the token budget `max_num_batched_tokens`."""

    tokens: PositiveInt
    max_num_batched_tokens: PositiveInt


class ExpertPadding(Spec):
    """Kernels of MXFP4 experts round widths up to these multiples: each GPU's part of the intermediate size, the hidden size."""

    intermediate: PositiveInt
    hidden: PositiveInt


class CompressedRule(Spec):
    """How an engine holds a compressed cache (DeepSeek-V4) and the weights of its attention.

    `pages` is the allocation. `tuples`: blocks come in tuples with one page of each kind (vLLM). `packed`: a block is as wide as
    all pages that grow. `tokens`: a pool holds a number of tokens, and windows and states for `window_share` of them (SGLang).
    `whole`: every GPU of a tensor-parallel group holds all weights except the experts. `wide` names the matrices kept in 16 bit.
    """

    pages: Literal["tuples", "packed", "tokens"] = "tuples"
    window_share: Annotated[float, above(0, 1)] = 1.0
    whole: Flag = False
    wide: tuple[Text, ...] = ()


class StateRule(Spec):
    """How an engine holds recurrent states in addition to the growing KV cache.

    `pages`: one pool of blocks; a block holds a state or as many tokens as fit in its place (vLLM). Groups of layers share the
    pool. A group has as many layers as the rarest layer type, or as the most common one if that has less than `group_spread`
    times as many. `split`: states have a pool of their own, `share` of the token pool (SGLang). `reserved`: states of every
    sequence that may run are allocated before the pool.

    A sequence holds `slots` states, or `cached_slots` with prefix caching (None: one per block), and `per_drafted` for each
    drafted token. `spare_slots` belong to no sequence. `checked`: the engine won't start with more sequences than blocks.
    """

    rule: Literal["pages", "split", "reserved"]
    group_spread: Annotated[float, within(1, 10)] = 1.5
    share: NonNegative = 0.0
    slots: PositiveInt = 1
    cached_slots: PositiveInt | None = 1
    per_drafted: NonNegativeInt = 0
    spare_slots: NonNegativeInt = 0
    checked: Flag = False


class MemoryReserve(Spec):
    """SGLang's reserve in MiB, which neither weights nor pool use. The memory fraction is 1 - reserve/memory.

    reserve = base + per_chunk_token*max(chunk, min_chunk_tokens) + per_graph_sequence*graph_batch + per_gpu*gpus
    + per_prefill_graph*prefill_graphs (+ mla when the model has latent attention), at least `floor` where
    memory exceeds `floor_above_gib`; `beyond_floor` comes on top.
    """

    base_mib: NonNegative
    per_chunk_token_mib: NonNegative = 0.0
    min_chunk_tokens: NonNegativeInt = 0
    per_graph_sequence_mib: NonNegative = 0.0
    per_gpu_mib: NonNegative = 0.0
    prefill_graphs_mib: NonNegative = 0.0
    prefill_graphs_mla_mib: NonNegative = 0.0
    floor_mib: NonNegative = 0.0
    floor_above_gib: NonNegative = 0.0
    beyond_floor_mib: NonNegative = 0.0


class VisionShare(Spec):
    """How an image encoder lowers SGLang's memory fraction: by `share`, and by `slope` for each size beyond `reference`.

    The size is layers x hidden^2. Its factor lies between `low` and `high`.
    """

    share: Fraction
    slope: NonNegative
    reference: PositiveInt
    low: Fraction
    high: Annotated[float, within(1, 2)]


class ReserveMore(Spec):
    """Additions to SGLang's reserve: MiB for speculation or a draft model, for attention-data ranks, for DeepEP, for images.

    `per_rank_sequence_mib` is counted for each rank and captured sequence, and 1.5 times if more than `many_sequences` are
    captured. At most `most_ranks` ranks count: with more, the rule would leave no cache, and deployments state the fraction.
    `exchange_mib` is counted where tokens go to the ranks of their experts.
    """

    speculation_mib: NonNegative = 0.0
    draft_model_mib: NonNegative = 0.0
    ranks_mib: NonNegative = 0.0
    per_rank_sequence_mib: NonNegative = 0.0
    exchange_mib: NonNegative = 0.0
    many_sequences: PositiveInt = 300
    most_ranks: PositiveInt = 8
    vision: VisionShare


class GraphSizes(Spec):
    """Batch sizes captured as CUDA graphs: `head`, then steps of `step` to `step_until`, then `wide_step` to `most`.

    `per_sequence` limits them to this many tokens for each sequence that may run.
    """

    head: tuple[PositiveInt, ...]
    step: PositiveInt
    step_until: PositiveInt
    wide_step: PositiveInt
    most: PositiveInt
    per_sequence: PositiveInt | None = None

    def count(self, most: int) -> int:
        """The number of sizes up to `most` tokens, at least 1."""
        fine = min(most, self.step_until) // self.step
        wide = max(0, min(most, self.most) - self.step_until) // self.wide_step
        return max(1, sum(size <= most for size in self.head) + fine + wide)


All2All = Literal["allgather", "low_latency", "high_throughput"]


def _backend(value: Any) -> Any:
    """Accept vLLM's names of backends (`deepep_low_latency`, `allgather_reducescatter`) and the short names."""
    if not isinstance(value, str):
        return value
    return value.strip().lower().replace("-", "_").removeprefix("deepep_").removesuffix("_reducescatter")


Backend = Annotated[All2All, Before(_backend)]  # as a user writes it
MostSequences = Annotated[int, above(0, 1_000_000)]
TokensOfStep = Annotated[int, above(0, 10_000_000)]
Imbalance = Annotated[float, within(1, 1_000)]


class EngineSettings(Spec):
    """Every setting the model needs, resolved for one engine version, GPU and layout.

    Memory and cache:

    - `pool_rule` gives the size of the cache pool. `utilisation` (vLLM): the fraction of the visible memory, less all use.
      `free_before_load` (SGLang): the memory that is free after the load, less (1 - fraction) of the memory free before it.
      `free_after_load` (TensorRT-LLM): a fraction of the memory that is free after the load.
    - `mixed_windows`: what a windowed layer keeps in a model that also has full layers, its window or all tokens. `ignored`: every
      layer of any model keeps all tokens, and attends to them.
    - `window_share`: tokens of the window pool per token of the full pool. None if all layers share one pool.
    - `encoder`: the image encoder is split over TP, or whole on each GPU.
    - `state_alignment_tokens`: a block of a hybrid model is a multiple of this.
    - `auto_cache`: the cache format if neither the user nor the checkpoint states one. None means that of the activations.

    Layout:

    - `attention_ranks`, `expert_ranks`: any number of ranks is allowed, or only one, or one for each GPU of a stage.
    - `pp_remainder`: the stages that take the layers left over, or the layers of each stage.

    Steps:

    - `admission`: what must be free in the cache to admit a request. `prompt`: the blocks of its prompt. `first_chunk`: those
      of its first chunk. `reserve`: those of prompt and output. `estimate`: what SGLang's running estimate says.
    - `one_shot`: the all-reduces that take one step because they have few tokens, whatever their bytes.
    - `padded_batches`: sequences to which a decode step is filled up, where a script captures CUDA graphs far apart.
    - `captured_prefill_tokens`: a step with up to this many prefill tokens runs as a CUDA graph.
    - `max_num_seqs_of`: in a pipeline, `max_num_seqs` counts the sequences of the whole engine, or those of each microbatch.
    - `budget_covers_context`: a context longer than max_num_batched_tokens raises that budget.
    - `unstretched_default`: where no length is stated, a model with LongRoPE has the positions from before that.
    - `shared_expert_tokens`: up to this many tokens, the shared expert runs at the same time as the routed ones.
    - `older_experts`: the expert kernels of an older architecture, where the version has none of this one.
    - `one_expert_kernel`: experts that one rank holds alone run in the kernel of expert parallelism, too.
    - `quick_experts`: the expert kernels of servers without attention-data ranks, where they are not those of offline runs.
    - `quantised_apart`: the formats for which a separate kernel quantises the inputs of products.
    - `fp8_product_gain`: the rate of FP8 products outside experts over that of the measured kernels.
    - `weights_without_kernels`: the formats of weights that the engine has no kernels for, not even at 16 bit.
    - `runs_attention`: whether the version runs the model's kind of attention.
    """

    pool_rule: Literal["utilisation", "free_before_load", "free_after_load"]
    memory_fraction: Fraction | None = None
    reserve: MemoryReserve | None = None
    reserve_more: ReserveMore | None = None
    graphs_in_budget: Flag
    cuda_graphs: GraphMemory
    attention_workspace: AttentionWorkspace | None = None
    exchange_buffers: ExchangeBuffers | None = None
    sampler_bytes_per_logit: NonNegative
    forward_activation: ForwardActivation
    non_torch_gib: NonNegative
    block_tokens: PositiveInt
    blocks_lost: NonNegativeInt
    mixed_windows: Literal["cut", "whole", "ignored"]
    window_share: Fraction | None = None
    states: StateRule
    compressed: CompressedRule
    auto_cache: Literal["fp8"] | None = None
    state_alignment_tokens: PositiveInt
    vision_profile: VisionProfile | None = None
    encoder: Literal["split", "whole"]
    vocabulary_padding: PositiveInt
    mxfp4_padding: ExpertPadding
    fp8_block: PositiveInt
    pp_remainder: Literal["last", "before_last", "tail", "head", "must_divide"] | tuple[PositiveInt, ...]
    max_num_seqs: PositiveInt
    max_num_seqs_of: Literal["engine", "microbatch"]
    max_num_batched_tokens: PositiveInt
    batches_in_flight: PositiveInt = 1
    budget_covers_context: Flag = False
    unstretched_default: Flag = False
    long_context: LongContext | None = None
    chunked_prefill: Flag
    step_order: Literal["mixed", "prefill_first", "decode_first"]
    admission: Literal["prompt", "first_chunk", "reserve", "estimate"]
    preemption: Literal["recompute_last", "retract_shortest_output", "never"]
    prefix_caching: Flag
    graph_sizes: GraphSizes | None = None
    padded_batches: tuple[PositiveInt, ...]
    full_decode_graph: Flag
    captured_prefill_tokens: NonNegativeInt
    collectives: Literal["custom", "nccl"]
    fused_all_reduce: FusedAllReduce | None = None
    one_shot: OneShot | None = None
    context_parallel: Flag = False
    decode_context_parallel: Flag = False
    attention_ranks: Literal["any", "one_or_all"]
    expert_ranks: Literal["any", "one_or_all"]
    all2all_backend: All2All = "allgather"
    expert_imbalance: Imbalance | None = None
    uneven_experts: Flag = False
    fused_activation_quantisation: Flag
    quantised_apart: tuple[Text, ...] = ()
    fp8_product_gain: Positive = 1.0
    weights_without_kernels: tuple[Text, ...] = ()
    runs_attention: Flag = True
    older_experts: OlderExperts | None = None
    one_expert_kernel: Flag = False
    quick_experts: QuickExperts | None = None
    shared_expert_tokens: NonNegativeInt = 0
    qk_norm_kernels: NormKernels = NormKernels(by_head=1, over_heads=2)
    fp4_activation: Literal["bf16", "fp8", "fp4"]
    fp8_attention: Flag
    vector_attention: VectorAttention | None = None
    grouped_reads: GroupedReads | None = None
    host: HostTime
    front_end: FrontEnd
    speculation: SpeculationHost

    def __hash__(self) -> int:
        """Hash what most often differs. Every look-up of a layout's memory hashes its settings."""
        return hash((self.max_num_batched_tokens, self.max_num_seqs, self.cuda_graphs.gib, self.pool_rule))

    @property
    def in_flight_tokens(self) -> int:
        """Prompt tokens in all batches in flight. Windows must be kept for them until they are processed."""
        return self.max_num_batched_tokens * self.batches_in_flight

    def most_sequences(self, microbatches: int) -> int:
        """The most sequences at once in a pipeline of `microbatches`."""
        return self.max_num_seqs * (microbatches if self.max_num_seqs_of == "microbatch" else 1)

    def speculating(self) -> Self:
        """The settings with speculative decoding: host time is longer, and GPU time no longer hides it."""
        host, more = self.host, self.speculation
        times = {name: getattr(host, name) + getattr(more, name) for name in ("per_step_us", "per_sequence_us")}
        return self.model_copy(update={"host": host.model_copy(update={**times, "overlapped": False})})

    def chunked(self) -> Self:
        """The settings with chunked prefill switched on by a long context. Decodes come first in a step."""
        assert self.long_context is not None
        budget = {"max_num_batched_tokens": self.long_context.max_num_batched_tokens}
        return self.model_copy(update={**budget, "chunked_prefill": True, "step_order": "decode_first"})

    def eager(self, layers: int) -> Self:
        """The settings without CUDA graphs: the host launches the kernels of every layer in each step while the GPU works.

        If no run tells how long launches take, there is a gap before each kernel.
        """
        host = self.host
        launching = host.per_step_us + layers * LAYER_LAUNCHES * host.eager_launch_us
        slower: dict[str, float] = {"per_step_us": launching, "eager_launch_us": 0.0, "overlapped": True}
        if not host.eager_launch_us:
            slower = {"per_kernel_us": host.per_kernel_us + host.eager_gap_us}
        elif not host.overlapped:  # the rest of the host's time hides behind nothing
            slower |= {
                "per_step_us": launching - host.per_step_us,
                "per_sequence_us": 0.0,
                "per_streamed_token_us": 0.0,
            }
            slower |= {"own_step_us": host.own_step_us + host.per_step_us, "own_sequence_us": host.sequence_us}
        graphs = {"cuda_graphs": GraphMemory(gib=0.0, low_gib=0.0, high_gib=0.0), "attention_workspace": None}
        without = {**graphs, "full_decode_graph": False, "captured_prefill_tokens": 0, "padded_batches": ()}
        return self.model_copy(update={**without, "host": host.model_copy(update=slower)})

    def waiting(self, seconds: float, *, beside: bool) -> Self:
        """The settings of an engine that waits `seconds` in every step for weights from host memory.

        With `beside` the engine fetches weights ahead, during the step's own work; otherwise it fetches them first.
        """
        longer = {"per_step_us": self.host.per_step_us + seconds / MICRO, "overlapped": beside and self.host.overlapped}
        return self.model_copy(update={"host": self.host.model_copy(update=longer)})

    def in_process(self) -> Self:
        """The settings of an engine called in process: no front end, no streaming, kernels for throughput."""
        nothing = FrontEnd(per_request_ms=0.0, per_prompt_token_us=0.0)
        host = self.host.model_copy(update={"per_streamed_token_us": 0.0})
        return self.model_copy(update={"front_end": nothing, "host": host, "quick_experts": None})


class Engine(Spec):
    """One engine profile, a file of hardware_profiles/engines.

    `settings` maps each setting to its rows; the first row that matches is used. The engine runs on GPUs of `vendors`; an empty
    list means any vendor. `budget_holds_sequences`: it refuses a token budget below its number of sequences.
    """

    name: Text
    aliases: tuple[Text, ...] = ()
    oldest: Text
    newest: Text
    vendors: tuple[Text, ...] = ()
    kept_16bit: tuple[Literal["embedding", "lm_head", "norm", "router"], ...]
    budget_holds_sequences: Flag = False
    settings: dict[str, tuple[Row, ...]]
    source: Text
    date: Text
    note: Text | None = None

    @property
    def title(self) -> str:
        """The engine's name as its makers write it: the first alias."""
        return self.aliases[0] if self.aliases else self.name

    def __hash__(self) -> int:
        """Hash name and version range, because `settings` is a mapping. Resolved settings are cached by engine."""
        return hash((self.name, self.oldest, self.newest))
