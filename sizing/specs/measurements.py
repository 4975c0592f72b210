"""How published benchmarks were run, for what their rows leave out: the file workloads/_benchmarks.yaml."""

from typing import Annotated, Any, Literal

from sizing.specs.engine_time import FusedAllReduce, HostTime
from sizing.specs.spec import Constraint, Spec
from sizing.specs.values import Flag, Fraction, NonNegative, OneFile, Positive, PositiveInt, Sourced, Text
from sizing.specs.workload import KvPrecision, Precision


class VersionSpelling(Spec):
    """The version that a spelling stands for, in rows whose source contains `rows_of` (None: any)."""

    engine: Text
    stated: str
    rows_of: Text | None = None
    version: Text
    why: Text
    source: Text


class UnstatedCache(Spec):
    """The cache format of an engine for these `weights`, for rows that state none.

    It holds for rows whose source contains `rows_of` and for models whose name begins with `model_of` (None: any).
    """

    engine: Text
    rows_of: Text | None = None
    model_of: Text | None = None
    weights: tuple[Precision, ...]
    cache: KvPrecision
    source: Text


class NoteRule(Spec):
    """A fact that only a row's notes state. Its value is `value`, else the group of the expression `pattern`.

    `value` of `ran_with` has the group in place of `{}`.
    For `lengths` the value is `spread`: lengths of requests are uniform between these shares of the row's length.
    """

    sets: Literal[
        "rate_per_s", "attention_dp", "max_num_seqs", "max_num_batched_tokens", "of_worker", "capped", "scheduler_steps", "graphs",
        "memory_fraction", "statistic", "itl_definition", "lengths", "tailed", "policy", "speculative", "burstiness", "tokens_per_step",
        "prefix_hit", "ran_with", "arrivals", "pools", "refused",
    ]  # fmt: skip
    pattern: Text
    value: Text | None = None
    spread: tuple[NonNegative, Positive] | None = None


class OfEngine(Spec):
    """Base of conventions for versions `since`..`until` of an engine, and optionally for one model, tp and shape."""

    engine: Text
    since: Text
    until: Text | None = None
    model: Text | None = None
    tp: PositiveInt | None = None
    isl: Positive | None = None
    osl: Positive | None = None
    longest: PositiveInt | None = None
    source: Text


class OfflineBudget(OfEngine):
    """The token budget `offline` of an offline call, if the server's budget is `server`."""

    server: PositiveInt
    offline: PositiveInt


class Script(OfEngine):
    """Engine settings from a source's scripts, for rows that do not state them. `architecture` None means any GPU."""

    rows_of: Text
    architecture: Text | None = None
    memory_fraction: Fraction | None = None
    max_num_batched_tokens: PositiveInt | None = None
    fp4_activation: Literal["bf16", "fp8", "fp4"] | None = None
    fused_all_reduce: FusedAllReduce | None = None
    captured_prefill_tokens: PositiveInt | None = None
    chunked_prefill: Flag | None = None
    admission: Literal["prompt", "first_chunk", "reserve", "estimate"] | None = None
    preemption: Literal["recompute_last", "retract_shortest_output", "never"] | None = None
    padded_batches: tuple[PositiveInt, ...] | None = None
    overlapped: Flag | None = None
    per_sequence_us: NonNegative | None = None

    def given(self, host: HostTime) -> dict[str, Any]:
        """The settings that this script states, by name. `host` is the host's time without it."""
        fields = type(self).model_fields.keys() - OfEngine.model_fields.keys() - {"rows_of", "architecture"}
        found = {name: value for name in fields if (value := getattr(self, name)) is not None}
        of_host: dict[str, Any] = {name: found.pop(name) for name in ("overlapped", "per_sequence_us") if name in found}
        if "overlapped" in of_host:
            of_host["ahead"] = of_host["overlapped"]
        return {**found, "host": host.model_copy(update=of_host)} if of_host else found


class RequestCount(OfEngine):
    """The number of requests of a saturated run."""

    requests: PositiveInt


class Window(Spec):
    """The least rounds of a closed loop whose source counts the requests of time windows, not those of the whole run."""

    rows_of: Text
    rounds: PositiveInt
    source: Text


class EngineSize(OfEngine):
    """The sizes with which an engine of a performance table was built."""

    max_num_seqs: PositiveInt
    max_num_batched_tokens: PositiveInt


class RoundingStep(Spec):
    """Sizes below `below` (None: any) are rounded up to a multiple of `step`."""

    below: PositiveInt | None = None
    step: PositiveInt


class SizeHeuristic(OfEngine):
    """How a benchmark tool sizes an engine, from the number of sequences that fit in the cache at a data set's lengths."""

    memory_share: Fraction
    most_sequences: PositiveInt
    most_tokens: PositiveInt
    least_sequences: PositiveInt
    least_tokens: PositiveInt
    sequence_steps: tuple[RoundingStep, ...]
    token_steps: tuple[RoundingStep, ...]


class SameExperts(Spec):
    """Rows of a source with dummy weights: all tokens choose the same experts, and no other experts are read."""

    rows_of: Text
    source: Text


class RepeatedPrompts(OfEngine):
    """Rows of a source whose runs begin with the prompts of a run before: of `requests`, the first `found` are in the prefix cache."""

    rows_of: Text
    requests: PositiveInt
    found: PositiveInt


class TailedLengths(OfEngine):
    """Rows of a source whose lengths are those of conversations: many short ones, with an exponential tail."""

    rows_of: Text


class BalancedPrompts(OfEngine):
    """Runs of a source whose attention-data ranks hold prompts until each has one, for at most `steps` steps, and `ready` more."""

    rows_of: Text
    steps: PositiveInt
    ready: PositiveInt


class GeneratedBudget(OfEngine):
    """The token budget of generated engine configs, for rows with `in_notes`: a rank's share in flight, a prompt and `spare_tokens`."""

    in_notes: Text
    spare_tokens: PositiveInt


class SystemBenchmark(Spec):
    """A benchmark of whole systems, for rows whose source contains `rows_of` and whose model contains `model_of`.

    Requests are those of the ready `workload`, and a server keeps its limits. Submitters choose the layout, and the first format
    of `weights` that the GPU can multiply in. `beams` is the width of its beam search, whose
    beams each read the cache of the prompt, which L2 holds and passes at `l2_gb_per_s`.
    """

    rows_of: Text
    model_of: Text
    workload: Text
    requests: PositiveInt
    weights: tuple[Precision, ...] = ()
    cache: KvPrecision = "auto"
    beams: PositiveInt = 1
    l2_gb_per_s: Positive | None = None
    source: Text


Range = tuple[NonNegative, Positive]  # least and largest ratio


class Agreement(Spec):
    """How far figures of one run may differ, as ratios.

    `over_lower_percentile` is the least ratio of a percentile to a lower one, or of a p99 to the mean. Runs with fewer busy
    clients than the share `least_busy` are told. A server that completes less than the share `saturated` of the arrivals is at capacity. Runs with more failed requests than the share `most_failed` are refused. Token counts that differ by more than `tokenizer` are of different tokenizers.
    Mean lengths that differ by less than `lengths` are of one shape.
    """

    e2e_over_parts: Range
    tokens_over_requests: Range
    clients_over_in_flight: Range
    served_over_arrivals: Range
    saturated: Fraction
    served_over_duration: Range
    over_lower_percentile: Positive
    least_busy: Fraction
    most_failed: Fraction
    tokenizer: Positive
    lengths: Positive
    source: Text


class Stretch(Spec):
    """The `factor` by which published runs exceed the positions that a config states."""

    factor: Annotated[float, Constraint(ge=1)]
    source: Text


class Conventions(OneFile):
    """The whole file."""

    FILE = "workloads/_benchmarks.yaml"

    versions: tuple[VersionSpelling, ...]
    systems: tuple[SystemBenchmark, ...]
    weights: dict[str, Precision]
    cache: dict[str, KvPrecision]
    unstated_cache: tuple[UnstatedCache, ...]
    notes: tuple[NoteRule, ...]
    whole_batch_engines: tuple[Text, ...]
    offline_budgets: tuple[OfflineBudget, ...]
    scripts: tuple[Script, ...]
    requests: tuple[RequestCount, ...]
    unstated_requests: PositiveInt
    unstated_rounds: PositiveInt
    windows: tuple[Window, ...]
    sizes: tuple[EngineSize, ...]
    heuristics: tuple[SizeHeuristic, ...]
    agreement: Agreement
    stretch: Stretch
    same_experts: tuple[SameExperts, ...]
    repeated_prompts: tuple[RepeatedPrompts, ...]
    tailed_lengths: tuple[TailedLengths, ...]
    generated_budgets: tuple[GeneratedBudget, ...]
    balanced_prompts: tuple[BalancedPrompts, ...]
    date: Text


class ReadyLine(Spec):
    """Words of the line by which a server says that it takes requests, and the source files that print it, with versions."""

    words: Text
    source: Text


class LogLines(Spec):
    """The start-up log of an engine: an expression that recognises it, and expressions for each fact, the newest first.

    `begins` is an expression for a line that each start prints once, before its facts; None if each process prints its own.
    `block_tokens` are the tokens of a cache block in logs that state the blocks alone.
    """

    sign: Text
    begins: Text | None = None
    block_tokens: PositiveInt | None = None
    facts: dict[Text, tuple[Text, ...]]


class EngineLogs(OneFile, Sourced):
    """The file hardware_profiles/_engine_logs.yaml: how to read facts from lines of start-up logs."""

    FILE = "hardware_profiles/_engine_logs.yaml"

    ready: tuple[ReadyLine, ...]
    engines: dict[Text, LogLines]
