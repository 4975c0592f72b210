"""What an engine adds to the time of a step: its host, its front end, the kernels that it uses or lacks, and factors of own runs."""

from typing import Annotated, Literal, Self, get_args

from sizing.specs.spec import Spec
from sizing.specs.units import parse_version
from sizing.specs.values import Flag, Fraction, NonNegative, NonNegativeInt, Positive, PositiveInt, Text, within

LAYER_LAUNCHES = 11  # of a dense layer: two norms, four products, rotary embedding, attention, activation, two sums
Added = Annotated[float, within(-1e6, 1e6, "microseconds")]


class HostTime(Spec):
    """Host time of one step: t = per_step + per_sequence * running sequences. `overlapped` hides it behind GPU time.

    With `ahead`, the host makes up a step while the one before it runs, so a request that arrives meanwhile joins a step later.
    `per_kernel_us` is the gap before each kernel of an engine without CUDA graphs. `eager_launch_us` is the time to launch a
    kernel in steps beyond `captured_prefill_tokens`; the GPU waits for it if the GPU is faster. `eager_gap_us` is the gap before
    each kernel when graphs are switched off, of engines whose launches no run tells. `per_streamed_token_us` is the
    time of each sequence in a server whose loop sends the tokens itself. `own_step_us` and `own_sequence_us` are what own runs
    add to every step and for each sequence, and the host's serial time without graphs; nothing hides them.
    """

    per_step_us: NonNegative
    per_sequence_us: NonNegative
    per_kernel_us: NonNegative = 0.0
    eager_launch_us: NonNegative = 0.0
    eager_gap_us: NonNegative = 0.0
    per_streamed_token_us: NonNegative = 0.0
    own_step_us: Added = 0.0
    own_sequence_us: Added = 0.0
    overlapped: Flag
    ahead: Flag = False
    points: PositiveInt | None = None
    spread: NonNegative | None = None

    @property
    def sequence_us(self) -> float:
        """Host time that a running sequence adds to a step."""
        return self.per_sequence_us + self.per_streamed_token_us

    def shared_by(self, steps: int) -> Self:
        """The host time of one of `steps` decode steps that the host schedules at once."""
        shared = {"per_step_us": self.per_step_us / steps, "per_sequence_us": self.per_sequence_us / steps}
        return self.model_copy(update=shared)

    def with_own(self, runs: "OwnRuns | None") -> Self:
        """The same with what own runs of a GPU add."""
        if runs is None:
            return self
        step_us, sequence_us = self.own_step_us + runs.step_us, self.own_sequence_us + runs.sequence_us
        return self.model_copy(update={"own_step_us": step_us, "own_sequence_us": sequence_us})


class SpeculationHost(Spec):
    """Host time that speculative decoding adds to a step: a constant and a time for each sequence. Nothing hides it."""

    per_step_us: NonNegative
    per_sequence_us: NonNegative
    points: PositiveInt | None = None
    spread: NonNegative | None = None


class FrontEnd(Spec):
    """The time of a request outside the steps, between client and scheduler: HTTP, tokenising, returning tokens.

    t = per_request + per_prompt_token * prompt tokens. It delays this request but no step of others. `serial_ms` is added: one
    thread spends it on each incoming request in turn. It takes those that start a run at the same moment through its tasks side
    by side, so that none of them reaches the scheduler before all do; later ones follow answers, which leave one by one.
    """

    per_request_ms: NonNegative
    per_prompt_token_us: NonNegative
    serial_ms: NonNegative = 0.0
    points: PositiveInt | None = None
    spread: NonNegative | None = None


class VectorAttention(Spec):
    """Decode attention with one thread block per sequence and query head, without tensor cores and without split contexts.

    Its time is the longer of two: reading the cache at the share `memory` of the bandwidth, and multiplying at `tflops` for every
    query head. The last block adds its own time, at `block_gflop_per_s`. Groups of `tensor_core_groups` query heads per KV head
    run another kernel, which has a measured row. Groups of `tensor_core_groups_8bit` do so only with an 8-bit cache.
    """

    memory: Fraction
    tflops: Positive
    block_gflop_per_s: Positive
    tensor_core_groups: tuple[PositiveInt, ...] = ()
    tensor_core_groups_8bit: tuple[PositiveInt, ...] = ()

    def holds(self, group: int, kv_format: str) -> bool:
        """Whether this kernel runs for `group` query heads per KV head and a cache in `kv_format`."""
        return group not in self.tensor_core_groups + (() if "16" in kv_format else self.tensor_core_groups_8bit)


# How tokens reach the ranks of their experts if several attention ranks share experts: all tokens to all ranks, or each token
# only to its experts, directly or through one GPU per node.
# Tokens of the busiest expert rank over the mean.


class GroupedReads(Spec):
    """The most of the bandwidth at which decode attention with `group` query heads per KV head reads the cache, where kernels are older than the measured ones."""

    group: PositiveInt
    share: Fraction


class OlderExperts(Spec):
    """Expert kernels of an older architecture. In long products they reach `compute` of the peak of the format, or of 16 bit."""

    compute: Fraction
    sixteen_bit: Flag


class NormKernels(Spec):
    """The number of kernels in a layer that normalise queries and keys: per head, and over all heads at once.

    `launch` is what each costs of a usual launch where no graph holds it: plain tensor operations in a row cost less than modules.
    """

    by_head: NonNegativeInt
    over_heads: NonNegativeInt
    launch: NonNegative = 1.0


class QuickExperts(Spec):
    """Expert kernels for few tokens in these `formats`, of replicas without attention-data ranks.

    Their time comes from the measured rows of the engine `rows_of`, whose library has the kernels.
    """

    formats: tuple[Text, ...]
    rows_of: Text


class FusedAllReduce(Spec):
    """An all-reduce that also adds the residual and normalises it. `most_mib` is the largest message, by `gpus` of the group.

    Its time comes from the measured rows of the engine `rows_of`, whose library has the kernel.
    """

    gpus: tuple[PositiveInt, ...]
    most_mib: tuple[Positive, ...]
    rows_of: Text

    def holds(self, gpus: int) -> float:
        """The largest message in MiB for a group of `gpus` GPUs; 0 if the kernel is not used."""
        return dict(zip(self.gpus, self.most_mib, strict=True)).get(gpus, 0.0)


class OneShot(Spec):
    """All-reduces of up to `most_tokens` tokens, which send the whole message to every GPU, whatever its size.

    The measured rows do so up to `measured_mib`, by `gpus` of the group. Larger messages take two steps there.
    """

    gpus: tuple[PositiveInt, ...]
    measured_mib: tuple[Positive, ...]
    most_tokens: PositiveInt


Factor = Literal["compute", "bandwidth", "step_us", "sequence_us"]
FACTORS: tuple[Factor, ...] = get_args(Factor)
# Outside these bounds a run was made on another GPU, or its row does not describe its setup.
MOST_REACHED = 10.0
Reached = Annotated[float, within(1 / MOST_REACHED, MOST_REACHED)]


HIGH_END = 0.9  # the quantile at the upper end of an 8-in-10 range


class FactorRange(Spec):
    """The 8-in-10 range of a fitted factor."""

    factor: Factor
    low: float
    high: float


class OwnBand(Spec):
    """The 8-in-10 range of measured/predicted over own runs. `n` runs measured the metric."""

    metric: Literal["ttft", "itl", "e2e", "throughput"]
    low: Positive
    high: Positive
    n: PositiveInt


class OwnRuns(Spec):
    """Four factors on step times of an engine, fitted to a few runs. Everything else stays as in the base profile.

    `compute` and `bandwidth` multiply the rates that kernels reach. `step_us` and `sequence_us` are added to each step and for
    each running sequence (negative: less time). `ranges` are the 8-in-10 ranges of the factors. `bands` are the errors of each
    run when predicted from the other runs. A `closed_loop` kept a number of requests in flight.
    """

    engine: Text
    engine_version: Text
    compute: Reached = 1.0
    bandwidth: Reached = 1.0
    step_us: Added = 0.0
    sequence_us: Added = 0.0
    ranges: tuple[FactorRange, ...] = ()
    bands: tuple[OwnBand, ...] = ()
    points: PositiveInt
    settings: Text
    closed_loop: Flag = False
    source: Text
    date: Text

    def other_version(self, title: str, version: str) -> str | None:
        """What is assumed for another version of the engine than the runs were of; None for the same version."""
        if parse_version(version) == parse_version(self.engine_version):
            return None
        return f"{title} {self.engine_version} hold for {version}"


class GpuExtension(Spec):
    """A profile that extends another one, given by name or path, by own runs."""

    extends: Text
    own_runs: OwnRuns
