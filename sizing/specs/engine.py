"""A serving engine: its settings by version, and the settings resolved for one version on one deployment."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from sizing.specs.own_runs import Added, OwnRuns
from sizing.specs.units import MICRO
from sizing.specs.values import Fraction, NonNegative, NonNegativeInt, Positive, PositiveInt, Spec, Text

Sparse = Literal["indexed", "compressed"]
Windows = Literal["alike", "unlike", "chunked"]


Flag = Annotated[bool, Field(strict=True)]


class When(Spec):
    """Where a row of a setting holds, beyond its version range; an absent condition always holds.

    Memory is the smallest total that nvidia-smi reports, in GiB. `gpus` counts tp x pp of one replica. `switched`: whether a
    switch joins the GPUs of a server (NVSwitch), in place of PCIe or bridges of two. `states`: whether the model has recurrent states.
    `sparse`: how a token of a sparse cache is held, as an index beside a latent (DeepSeek-V3.2) or compressed (DeepSeek-V4).
    `windows`: what the windowed layers beside full ones are: of the same cache a token (`alike`) or of another, or chunks.
    `between_nodes`: whether the GPUs of a pipeline stage are of several nodes.
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
    switched: Annotated[bool, Field(strict=True)] | None = None
    states: Annotated[bool, Field(strict=True)] | None = None
    sparse: tuple[Sparse, ...] = ()
    windows: tuple[Windows, ...] = ()
    between_nodes: Annotated[bool, Field(strict=True)] | None = None


class Row(Spec):
    """One value of a setting: versions `since`..`until` (inclusive; `0.19` covers every 0.19.x), condition, source."""

    since: Text
    until: Text | None = None
    when: When = When.model_construct()
    value: Any
    source: Text
    evidence: Literal["read", "inferred", "from memory", "measured", "assumed"]
    note: Text | None = None


class GraphMemory(Spec):
    """CUDA-graph memory of one GPU in GiB: a value to plan with and the range seen, where all batch sizes are captured."""

    gib: NonNegative
    low_gib: NonNegative
    high_gib: NonNegative


class AttentionWorkspace(Spec):
    """Memory that kernels of attention keep besides: `mib`, or so many bytes for each query value of a token budget, if that is more.

    It is kept where the cache is in one of `caches`, or in any format if they are empty.
    """

    mib: Positive
    per_query_value_bytes: NonNegative = 0.0
    caches: tuple[Text, ...] = ()


class ExchangeBuffers(Spec):
    """Memory of a GPU for ways to experts: MiB of either, and messages of so many tokens a rank for the low-latency one."""

    high_throughput_mib: NonNegative
    low_latency_mib: NonNegative
    low_latency_tokens: PositiveInt


class ForwardActivation(Spec):
    """Peak of one forward pass, in bytes a token: per_hidden * hidden + the largest of the layers' buffers.

    A dense MLP has per_intermediate * intermediate/tp, a recurrent layer per_state_width * the width of its convolution.
    """

    per_hidden_bytes: NonNegative
    per_intermediate_bytes: NonNegative
    per_state_width_bytes: NonNegative = 0.0


class VisionProfile(Spec):
    """Peak of the image encoder in an engine's profile run, in bytes a patch and hidden value: on every GPU, and split over TP."""

    whole_bytes: NonNegative
    split_bytes: NonNegative


class LongContext(Spec):
    """Contexts above so many `tokens` switch chunked prefill on, with a token budget of its own."""

    tokens: PositiveInt
    max_num_batched_tokens: PositiveInt


class ExpertPadding(Spec):
    """Multiples that kernels round widths of MXFP4 experts up to: each GPU's part of the intermediate size, and the hidden size."""

    intermediate: PositiveInt
    hidden: PositiveInt


class CompressedRule(Spec):
    """How an engine holds a compressed cache (DeepSeek-V4) and the weights of its attention.

    `tuples`: blocks of all layers in tuples, one of each kind of page (vLLM). `packed`: blocks as wide as all pages that grow.
    `tokens`: no blocks of windows; a pool holds so many tokens, and windows and states for `window_share` of them (SGLang).
    `whole`: every GPU of a tensor-parallel group holds all but the experts. `wide`: matrices kept in 16 bit.
    """

    pages: Literal["tuples", "packed", "tokens"] = "tuples"
    window_share: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    whole: Flag = False
    wide: tuple[Text, ...] = ()


class StateRule(Spec):
    """How an engine holds recurrent states beside a cache that grows.

    `pages`: one pool, cut into blocks that hold a state or as many tokens (vLLM); groups of layers share it, as large as
    the smallest type of layer, or the largest where that is less than `group_spread` times as many. `split`: a pool of
    their own, `share` of the one for tokens (SGLang). `reserved`: for every sequence that may run, before the pool.

    A sequence holds `slots` states, `cached_slots` of them with prefix caching (None: one a block), and `per_drafted` for
    each drafted token. `spare_slots` are of no sequence. `checked`: the engine won't start with more sequences than blocks.
    """

    rule: Literal["pages", "split", "reserved"]
    group_spread: Annotated[float, Field(ge=1, le=10, strict=True)] = 1.5
    share: NonNegative = 0.0
    slots: PositiveInt = 1
    cached_slots: PositiveInt | None = 1
    per_drafted: NonNegativeInt = 0
    spare_slots: NonNegativeInt = 0
    checked: Annotated[bool, Field(strict=True)] = False


class MemoryReserve(Spec):
    """SGLang's reserve in MiB, kept out of weights and pool together; the fraction is 1 - reserve/memory.

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
    """How an encoder of images lowers SGLang's fraction: by `share`, and by `slope` for each size beyond `reference`.

    The size is layers x hidden^2; the factor of it lies between `low` and `high`.
    """

    share: Fraction
    slope: NonNegative
    reference: PositiveInt
    low: Fraction
    high: Annotated[float, Field(ge=1, le=2, strict=True)]


class ReserveMore(Spec):
    """What SGLang's reserve grows by: MiB for speculation (or with a draft model), of attention-data ranks, a share for images.

    `per_rank_sequence` is a captured sequence's of each rank, half as much again where more than `many_sequences` are captured. It is
    counted for `most_ranks`: with more, the rule leaves no cache at all, and deployments state the fraction themselves.
    """

    speculation_mib: NonNegative = 0.0
    draft_model_mib: NonNegative = 0.0
    ranks_mib: NonNegative = 0.0
    per_rank_sequence_mib: NonNegative = 0.0
    many_sequences: PositiveInt = 300
    most_ranks: PositiveInt = 8
    vision: VisionShare


class GraphSizes(Spec):
    """Batch sizes captured as CUDA graphs: `head`, then steps of `step` to `step_until`, then `wide_step` to `most`.

    `per_sequence` ends them at so many tokens a sequence that may run.
    """

    head: tuple[PositiveInt, ...]
    step: PositiveInt
    step_until: PositiveInt
    wide_step: PositiveInt
    most: PositiveInt
    per_sequence: PositiveInt | None = None

    def count(self, most: int) -> int:
        """Sizes of up to `most` tokens, at least one."""
        fine = min(most, self.step_until) // self.step
        wide = max(0, min(most, self.most) - self.step_until) // self.wide_step
        return max(1, sum(size <= most for size in self.head) + fine + wide)


LAYER_LAUNCHES = 11  # of a dense layer: two norms, four products, rotary embedding, attention, activation, two sums


class HostTime(Spec):
    """Host time of one step: t = per_step + per_sequence * running sequences; `overlapped` hides it under the GPU.

    `per_kernel_us` is the gap before each kernel of an engine that launches them one by one, without CUDA graphs;
    `eager_launch_us` what launching a kernel takes in steps beyond `captured_prefill_tokens`, which the GPU waits for where it
    is faster; `per_streamed_token_us` what each sequence adds in a server whose loop sends the tokens back itself. `own_step_us`
    and `own_sequence_us` are what own runs add to every step, and to it for a sequence; nothing hides them.
    """

    per_step_us: NonNegative
    per_sequence_us: NonNegative
    per_kernel_us: NonNegative = 0.0
    eager_launch_us: NonNegative = 0.0
    per_streamed_token_us: NonNegative = 0.0
    own_step_us: Added = 0.0
    own_sequence_us: Added = 0.0
    overlapped: Annotated[bool, Field(strict=True)]
    points: PositiveInt | None = None
    spread: NonNegative | None = None

    @property
    def sequence_us(self) -> float:
        """Host time that a running sequence adds to a step."""
        return self.per_sequence_us + self.per_streamed_token_us

    def with_own(self, own: OwnRuns | None) -> Self:
        """The same with what own runs of a GPU add."""
        if own is None:
            return self
        return self.model_copy(update={"own_step_us": own.step_us, "own_sequence_us": own.sequence_us})


class SpeculationHost(Spec):
    """Host time that speculative decoding adds to a step: a constant and a share a sequence; nothing hides it."""

    per_step_us: NonNegative
    per_sequence_us: NonNegative
    points: PositiveInt | None = None
    spread: NonNegative | None = None


class FrontEnd(Spec):
    """What a request takes outside the steps, between client and scheduler: HTTP, tokenising, the way back of its tokens.

    t = per_request + per_prompt_token * prompt tokens. It delays the request, and no step of others. `serial_ms` comes on top: one
    thread takes it for each request on its way in, one after another, so that requests that come together wait for each other.
    """

    per_request_ms: NonNegative
    per_prompt_token_us: NonNegative
    serial_ms: NonNegative = 0.0
    points: PositiveInt | None = None
    spread: NonNegative | None = None


class VectorAttention(Spec):
    """Decode attention by one thread block a sequence and query head, on the general cores: no tensor cores, no split of a context.

    It takes the longer of reading the cache, at `memory` of the bandwidth, and multiplying, at `tflops` of the whole GPU, for
    every query head does its own; the last block adds what it takes alone, at `block_gflop_per_s`. Groups of
    `tensor_core_groups` query heads a KV head go to another kernel, whose measured row holds; those of `tensor_core_groups_8bit` do so with a
    cache in 8 bit alone.
    """

    memory: Fraction
    tflops: Positive
    block_gflop_per_s: Positive
    tensor_core_groups: tuple[PositiveInt, ...] = ()
    tensor_core_groups_8bit: tuple[PositiveInt, ...] = ()

    def holds(self, group: int, kv_format: str) -> bool:
        """Whether heads of such groups are attended to in this way."""
        return group not in self.tensor_core_groups + (() if "16" in kv_format else self.tensor_core_groups_8bit)


# How tokens get to the ranks of their experts and back where several ranks of attention share them: all tokens to all, or each
# to its experts alone, straight or through one GPU a node.
All2All = Literal["allgather", "low_latency", "high_throughput"]
# Tokens of the busiest rank of experts over the mean.
Imbalance = Annotated[float, Field(ge=1, le=1_000, strict=True)]


class NormKernels(Spec):
    """Kernels of one layer that norm queries and keys: of each head by itself, and over all heads at once."""

    by_head: NonNegativeInt
    over_heads: NonNegativeInt


class FusedAllReduce(Spec):
    """Sums over GPUs that add the residual and norm it in the same kernel: up to `most_mib` of a message, by the `gpus` of a group.

    The kernel's time is that of the measured rows of the engine `rows_of`, whose library it is from.
    """

    gpus: tuple[PositiveInt, ...]
    most_mib: tuple[Positive, ...]
    rows_of: Text

    def holds(self, gpus: int) -> float:
        """The largest message of so many GPUs in MiB; 0 where it is not used."""
        return dict(zip(self.gpus, self.most_mib, strict=True)).get(gpus, 0.0)


class EngineSettings(Spec):
    """Every setting the model needs, resolved for one engine version, GPU and layout.

    `pool_rule` says how the cache pool follows from memory: `utilisation` (vLLM: visible * fraction less all use),
    `free_before_load` (SGLang: free after load less (1-fraction) of free before), `free_after_load`
    (TensorRT-LLM: a fraction of what is left). `admission`: `prompt` admits when the prompt's blocks are free,
    `first_chunk` when those of its first chunk are, `reserve` when prompt and output are, `estimate` by SGLang's
    running estimate. `mixed_windows`: whether windowed layers beside full ones are cut to their window, or kept whole. `window_share`: tokens of a pool for windows for each of the pool beside it, None where layers share one. An `encoder` of images is split over TP, or whole on each GPU. `state_alignment_tokens`: blocks of a hybrid model are a multiple of it.
    `auto_cache` is the format of a cache that neither the user nor the checkpoint states, None for the activations'.
    Attention data parallelism of an engine has `attention_ranks` of any number, or one for each GPU of a stage; `expert_ranks` alike.
    `pp_remainder` may be the layers of each stage, as asked. `captured_prefill_tokens`: steps with prefill of up to so many tokens run as
    CUDA graphs. `budget_covers_context` raises max_num_batched_tokens to the context length where that
    is longer. `shared_expert_tokens`: in steps of up to so many tokens the shared expert runs beside the routed ones, on a second stream or as
    one more of them. `older_experts`: kernels of experts are older than the measured ones. Inputs of products in formats that are `quantised_apart` have a kernel of their own for it, even where others' have not.
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
    mixed_windows: Literal["cut", "whole"]
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
    max_num_batched_tokens: PositiveInt
    batches_in_flight: PositiveInt = 1
    budget_covers_context: Flag = False
    long_context: LongContext | None = None
    chunked_prefill: Flag
    step_order: Literal["mixed", "prefill_first", "decode_first"]
    admission: Literal["prompt", "first_chunk", "reserve", "estimate"]
    preemption: Literal["recompute_last", "retract_shortest_output", "never"]
    prefix_caching: Flag
    graph_sizes: GraphSizes | None = None
    full_decode_graph: Flag
    captured_prefill_tokens: NonNegativeInt
    collectives: Literal["custom", "nccl"]
    fused_all_reduce: FusedAllReduce | None = None
    context_parallel: Flag = False
    decode_context_parallel: Flag = False
    attention_ranks: Literal["any", "one_or_all"]
    expert_ranks: Literal["any", "one_or_all"]
    all2all_backend: All2All = "allgather"
    expert_imbalance: Imbalance | None = None
    uneven_experts: Flag = False
    fused_activation_quantisation: Flag
    quantised_apart: tuple[Text, ...] = ()
    older_experts: Flag = False
    shared_expert_tokens: NonNegativeInt = 0
    qk_norm_kernels: NormKernels = NormKernels(by_head=1, over_heads=2)
    fp4_activation: Literal["bf16", "fp8", "fp4"]
    fp8_attention: Flag
    vector_attention: VectorAttention | None = None
    host: HostTime
    front_end: FrontEnd
    speculation: SpeculationHost

    @property
    def in_flight_tokens(self) -> int:
        """Tokens of a prompt that windows are kept for before they are done: those of all batches in flight."""
        return self.max_num_batched_tokens * self.batches_in_flight

    def speculating(self) -> Self:
        """The settings of an engine that decodes speculatively: its host works longer, and in line with the GPU."""
        host, more = self.host, self.speculation
        slower = {
            "per_step_us": host.per_step_us + more.per_step_us,
            "per_sequence_us": host.per_sequence_us + more.per_sequence_us,
            "overlapped": False,
        }
        return self.model_copy(update={"host": host.model_copy(update=slower)})

    def chunked(self) -> Self:
        """The settings of an engine whose long context switches chunked prefill on: decodes go first."""
        assert self.long_context is not None
        budget = self.long_context.max_num_batched_tokens
        return self.model_copy(
            update={"max_num_batched_tokens": budget, "chunked_prefill": True, "step_order": "decode_first"}
        )

    def eager(self, layers: int) -> Self:
        """The settings of an engine without CUDA graphs: the host launches each layer of every step, while the GPU works."""
        host = self.host
        launching = host.per_step_us + layers * LAYER_LAUNCHES * host.eager_launch_us
        slower = {"per_step_us": launching, "eager_launch_us": 0.0, "overlapped": True}
        nothing = GraphMemory(gib=0.0, low_gib=0.0, high_gib=0.0)
        graphs = {"cuda_graphs": nothing, "attention_workspace": None}
        without = {**graphs, "full_decode_graph": False, "captured_prefill_tokens": 0}
        return self.model_copy(update={**without, "host": host.model_copy(update=slower)})

    def waiting(self, seconds: float, *, beside: bool) -> Self:
        """The settings of an engine that waits so long in every step, for weights that come over a bus.

        They come `beside` the step's own work where the engine fetches them ahead, else before it.
        """
        longer = {"per_step_us": self.host.per_step_us + seconds / MICRO, "overlapped": beside and self.host.overlapped}
        return self.model_copy(update={"host": self.host.model_copy(update=longer)})

    def in_process(self) -> Self:
        """The settings of an engine that is called directly: nothing in front of it, nothing streamed."""
        nothing = FrontEnd(per_request_ms=0.0, per_prompt_token_us=0.0)
        host = self.host.model_copy(update={"per_streamed_token_us": 0.0})
        return self.model_copy(update={"front_end": nothing, "host": host})


class Engine(Spec):
    """One engine profile, a file of hardware_profiles/engines: `settings` maps each setting to its rows, first match wins.

    `vendors` are those whose GPUs it runs on, any where none is named.
    """

    name: Text
    aliases: tuple[Text, ...] = ()
    oldest: Text
    newest: Text
    vendors: tuple[Text, ...] = ()
    kept_16bit: tuple[Literal["embedding", "lm_head", "norm", "router"], ...]
    settings: dict[str, tuple[Row, ...]]
    source: Text
    date: Text
    note: Text | None = None

    @property
    def title(self) -> str:
        """The engine's name as its makers write it: the first alias."""
        return self.aliases[0] if self.aliases else self.name

    def __hash__(self) -> int:
        """Hash what names the profile, for `settings` is a mapping; resolved settings are cached by engine."""
        return hash((self.name, self.oldest, self.newest))
