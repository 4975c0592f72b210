"""How engines are started: the flags of each version, a deployment as read or written, and its policy."""

from typing import Annotated, Any, Literal

from sizing.specs.bands import LEAST_CONFIDENCE, MOST_CONFIDENCE
from sizing.specs.optimisations import MOST_REPLICAS, Lora, Optimisations, Speculative
from sizing.specs.spec import Constraint, Spec
from sizing.specs.values import (
    NO_ENTRIES,
    AsShare,
    Flag,
    Fraction,
    GroupSize,
    Growth,
    OneFile,
    Positive,
    PositiveInt,
    Sourced,
    Text,
    above,
    within,
)
from sizing.specs.workload import KvPrecision, Precision, Serving, Task

# What a flag states, in this project's words. Sizes of a layout are as the engine counts them.
Term = Literal[
    "tp", "pp", "dp", "ep", "cp", "dcp", "attention_dp", "attention_dp_size", "expert_parallel", "all2all_backend", "deepep_mode",
    "memory_fraction", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_bytes", "max_total_tokens", "kv_precision",
    "precision", "prefix_caching", "no_prefix_caching", "enforce_eager", "cpu_offload_gb", "pp_layers", "limit_mm_per_prompt",
    "language_model_only", "mamba_full_memory_ratio", "max_mamba_cache_size", "lora", "lora_slots", "lora_rank", "spec_method",
    "spec_tokens", "spec_modules", "spec_model", "spec_verified", "spec_width", "role", "connector", "nodes", "node_rank", "head",
    "headless", "executor", "dp_local", "dp_start", "dp_head", "dp_backend", "eplb", "redundant_experts", "no_overlap", "pooling",
    "convert", "task", "port", "dispatch_tokens",
]  # fmt: skip
SIZES: tuple[Term, ...] = ("tp", "pp", "dp", "ep", "cp", "dcp", "attention_dp_size")
TOKENS: tuple[Term, ...] = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_total_tokens")
# Terms whose values are whole numbers above 0, and terms whose values are shares of a whole.
COUNTS: tuple[Term, ...] = (
    *SIZES, *TOKENS, "max_mamba_cache_size", "lora_slots", "lora_rank", "spec_tokens", "spec_modules", "spec_verified", "spec_width",
    "nodes", "dp_local", "dispatch_tokens",
)  # fmt: skip
SHARES: tuple[Term, ...] = ("memory_fraction",)


Words = dict[str, str]


class EngineFlag(Spec):
    """One flag: the term that it states, its spellings, and the versions that have it (`since`..`until`, both included).

    `off` lists spellings that switch it off. A `switch`, or a flag with `off`, takes no value. `values` maps our words to the
    engine's words, `also` maps other engine words to ours, `unknown` lists words that leave the term open, `unread` says what words do that are not predicted, and `choices` the only numbers that a flag takes. `key` is the place
    in the flag's JSON value, or in the engine's settings `file`. `env` is an environment variable instead of a flag. An `absent`
    flag is on if its key is null. A flag with `bare` may have the value of its key alone in place of the object. With `states_on`
    the words in `values` switch the term on. What a `recalled` one does, and from which version on, is from memory. A `read_only` flag is read but never written. `made` lists those of the engine's words for a
    precision that it makes of 16-bit weights while it loads, `any_format` those that read a quantised checkpoint of any format.
    """

    term: Term
    flags: tuple[Text, ...] = ()
    off: tuple[Text, ...] = ()
    switch: Flag = False
    values: Words = NO_ENTRIES
    also: Words = NO_ENTRIES
    unknown: tuple[Text, ...] = ()
    unread: Words = NO_ENTRIES
    choices: tuple[int, ...] = ()
    made: tuple[Text, ...] = ()
    any_format: tuple[Text, ...] = ()
    key: Text | None = None
    also_keys: tuple[Text, ...] = ()
    file: Flag = False
    env: Text | None = None
    absent: Flag = False
    bare: Flag = False
    states_on: Flag = False
    recalled: Flag = False
    read_only: Flag = False
    since: Text = "0.1"
    until: Text | None = None

    @property
    def takes_value(self) -> bool:
        """Whether a value follows the flag."""
        return not (self.switch or self.off)

    @property
    def ours(self) -> dict[str, str]:
        """Our words by the engine's."""
        return {theirs: word for word, theirs in self.values.items()} | self.also

    @property
    def name(self) -> str:
        """The name that a user writes: the first spelling, else the key in the file, else the variable."""
        return self.flags[0] if self.flags else self.key or self.env or self.term


class EngineSettingsFile(Spec):
    """An engine's own settings file: the flags that name it, newest first, and the file name to write.

    If no flag has a key in the file, its keys are the flags without leading hyphens.
    """

    flags: tuple[Text, ...]
    flag_until: Words = NO_ENTRIES
    name: Text


class Cluster(Spec):
    """The commands that join the nodes of an instance before its engine starts: on the `first` node and on `further` nodes."""

    first: tuple[Text, ...]
    further: tuple[Text, ...]


class SideChannel(Spec):
    """The environment variables for the address and port at which an instance hands over its KV cache."""

    host: Text
    port: Text


class IgnoredFlags(Spec):
    """Flags and keys that change no prediction: with a value (`values`), a JSON object (`objects`), or none (`switches`).

    `limited` flags and keys are ignored only for the listed values; any other value is a fault. `on` are switches that are ignored
    only where they are on. `unmodelled` flags and keys change the speed in a way that is not predicted, which is said. `of_model` flags override keys of
    the model's config.json; the keys in `model_keys` change no prediction.
    """

    values: tuple[Text, ...] = ()
    objects: tuple[Text, ...] = ()
    switches: tuple[Text, ...] = ()
    on: tuple[Text, ...] = ()
    keys: tuple[Text, ...] = ()
    limited: dict[str, tuple[Text, ...]] = NO_ENTRIES
    unmodelled: tuple[Text, ...] = ()
    of_model: tuple[Text, ...] = ()
    model_keys: tuple[Text, ...] = ()


class EngineFlags(Sourced):
    """A file of hardware_profiles/launch: how one engine is started.

    `serves` lists words with which a start command begins, `images` parts of container image names. `command` is the command to
    write. `tp_counts` says whether TP counts the GPUs of attention or of a whole stage. `sequences_of` says whether the limit on
    running sequences holds for a rank or a replica. `adapters` gives the default slots and rank if LoRA is only switched on, and `loads` the flag
    that names the adapters. `dispatch_sizes` are the most tokens that a rank may be told to send in a step of decode with low latency.
    `refused_variables` has values of variables with which an engine starts that is not predicted, and what they do.
    `detects` are tasks that the engine finds in a checkpoint's own files, without a flag.
    `holds_longest`: the engine starts only if its cache holds the longest sequence. `negated` is the first version in which each
    switch has a form that turns it off (`--no-` before its name).

    Nodes of an instance meet at the first node's `head_port`, or in a `cluster`. Otherwise one `launcher`, which takes {nodes},
    {node_gpus} and {gpus}, starts a process for each GPU. Instances of separate pools find each other by their `side_channel`.
    """

    name: Text
    serves: tuple[Text, ...]
    images: tuple[Text, ...]
    image: Text
    vendor_images: Words = NO_ENTRIES
    command: tuple[Text, ...]
    model_flags: tuple[Text, ...]
    tp_counts: Literal["attention", "stage"]
    sequences_of: Literal["rank", "replica"] = "rank"
    port: PositiveInt
    host: tuple[Text, ...] = ()
    health: Text
    head_port: PositiveInt | None = None
    cluster: Cluster | None = None
    launcher: tuple[Text, ...] = ()
    side_channel: SideChannel | None = None
    adapters: Lora
    loads: Text | None = None
    dispatch_sizes: tuple[PositiveInt, ...] = ()
    holds_longest: Flag = False
    detects: tuple[Task, ...] = ()
    negated: Text | None = None
    file: EngineSettingsFile | None = None
    flags: tuple[EngineFlag, ...]
    ignored: IgnoredFlags
    refused_variables: dict[str, dict[str, Text]] = NO_ENTRIES
    note: Text | None = None

    def states(self, term: Term) -> bool:
        """Whether any version has a flag for `term`. Otherwise the engine chooses the value itself."""
        return any(row.term == term for row in self.flags)


class BenchmarkTool(Spec):
    """A benchmark tool: the version whose flags are written, its result file, and its command.

    `open_load` has flags for random arrivals at a rate, `closed_load` for a fixed number of requests in flight. The flag in
    `goals` takes limits (`ttft:500`). `added_tokens` is room for what a template and special tokens may add to a prompt.
    """

    version: Text
    result: Text
    command: Text
    open_load: Text
    closed_load: Text
    goals: Text | None = None
    added_tokens: Annotated[int, Constraint(ge=0)] = 0


class Charts(Spec):
    """The keys of charts and controllers, as paths: of the model, of replicas, of the fewest replicas of an autoscaler, and names.

    `keyed` are mappings whose keys are flags, by the key that marks what has one: of them `further_flags` have words, `no_flags` are no
    flags, and those `off` switch a flag off by false. `texts` hold YAML in a text. `workers` has the nodes of a replica.

    `parallel` has the flags that they write for the keys of their sizes; `other_sizes` change no layout. `scalers` are kinds that
    scale other manifests, with the keys of the fewest and the most replicas, and `chart_scalers` are such mappings of a chart with
    `enabled: true`; kinds in `one` run one replica by default. With false, the keys in `switches` switch off what they are around.
    `refused` says what a chart starts by keys that are not read. `bundles` lists what a replica reserves, `bundle_of_worker` what each of its workers does, and `label_lists` are
    mappings with a node label: the keys of its name and its values. `slower` has sentences on what adds to the engine's times, by the key that marks what has it.
    """

    models: tuple[tuple[Text, ...], ...]
    replicas: tuple[tuple[Text, ...], ...]
    fewest: tuple[tuple[Text, ...], ...]
    parallel: dict[str, Text]
    keyed: dict[str, Text]
    further_flags: tuple[Text, ...]
    no_flags: tuple[Text, ...]
    off: tuple[Text, ...]
    names: tuple[tuple[Text, ...], ...]
    gpu_types: dict[str, Text]
    texts: tuple[tuple[Text, ...], ...]
    workers: Text
    other_sizes: tuple[Text, ...]
    scalers: dict[str, tuple[Text, Text]]
    chart_scalers: dict[str, tuple[Text, Text]]
    switches: tuple[Text, ...]
    refused: dict[str, Text]
    bundles: tuple[Text, ...]
    bundle_of_worker: tuple[Text, ...]
    label_lists: dict[str, tuple[Text, Text]]
    slower: dict[str, Text]
    one: tuple[Text, ...]


class ScriptLimits(Spec):
    """The most of a shell script that is read: characters, variables, nested conditions, and commands whose output is a word of another.

    `words` are those of a command, `all_words` of all; `held` are the characters of a variable, and of one that names
    others `short`; `scripts` run one another. `commands` are those of engines, and `tried` words tell which engine is meant.
    """

    characters: PositiveInt
    variables: PositiveInt
    nested: PositiveInt
    inside: PositiveInt
    words: PositiveInt
    all_words: PositiveInt
    held: PositiveInt
    scripts: PositiveInt
    commands: PositiveInt
    tried: PositiveInt
    short: PositiveInt


class LaunchFacts(OneFile, Sourced):
    """The file hardware_profiles/_launch.yaml: what manifests state in addition to an engine's flags."""

    FILE = "hardware_profiles/_launch.yaml"

    node_labels: dict[str, Text]
    label_keys: dict[str, Text]
    other_label_keys: tuple[Text, ...]
    instance_label_keys: tuple[Text, ...]
    instance_prefix: Text
    cloud_names: dict[str, Text]
    resources: dict[str, Text]
    slice_resource: Text
    slice_label_keys: tuple[Text, ...]
    shared_resources: tuple[Text, ...]
    shared_ends: tuple[Text, ...]
    shared_keys: tuple[Text, ...]
    unshared: tuple[Text, ...]
    visible_devices: tuple[Text, ...]
    device_request: Text
    gpu_runtime: Text
    device_names: tuple[Text, ...]
    device_files: dict[str, tuple[Text, ...]]
    chosen_devices: dict[str, Text]
    closed_images: dict[str, Text]
    serving_images: dict[str, tuple[Text, ...]]
    charts: Charts
    script_limits: ScriptLimits
    pod_entries: PositiveInt
    start_period_s: PositiveInt
    start_failures: PositiveInt
    probe_period_s: PositiveInt
    probe_timeout_s: PositiveInt
    probe_failures: PositiveInt
    shared_memory: Text
    connector: Text
    bootstrap_port: PositiveInt
    side_channel_port: PositiveInt
    benchmark_s: Positive
    least_requests: PositiveInt
    benchmarks: dict[str, BenchmarkTool]

    @property
    def every_label_key(self) -> tuple[str, ...]:
        """All keys of node labels that name a GPU type."""
        return (*self.label_keys.values(), *self.other_label_keys)


Role = Literal["whole", "prefill", "decode"]


class Launched(Spec):
    """A deployment, existing or planned: equal replicas of one engine instance.

    `role` is the part of a request that they serve. A deployment with separate prefill and decode has two of these records.
    `reserved_gpus` is the number of GPUs that a replica's containers request. `connector` transfers the KV cache from prefill to
    decode. `draft_checkpoint` is the checkpoint of the draft head. `task` is what flags say that it does: `pooling` is any task that
    generates nothing. Without one the checkpoint says it.
    """

    name: Text = "deployment"
    model: Text
    gpu: Text | None = None
    replicas: Annotated[int, above(0, MOST_REPLICAS)] | None = None
    precision: Precision | None = None
    kv_precision: KvPrecision = "auto"
    serving: Serving = Serving()
    speculative: Speculative | None = None
    lora: Lora | None = None
    role: Role = "whole"
    connector: Text | None = None
    draft_checkpoint: Text | None = None
    reserved_gpus: GroupSize | None = None
    task: Task | Literal["pooling"] | None = None

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """Read `speculative` and `lora` as a workload writes them."""
        if not isinstance(data, dict):
            return data
        asked = {name: data[name] for name in ("speculative", "lora") if isinstance(data.get(name), str)}
        return {**data, **{name: getattr(Optimisations.model_validate(asked), name) for name in asked}}


class Policy(Spec):
    """Requirements on a deployment in addition to demand and limits.

    `max_utilisation` bounds the demand over the most that the deployment serves within the limits. `min_headroom` is the growth
    of the demand that it must bear (0.2 is 20 %). `confidence` is the share of similar published runs that keep the limits.
    """

    max_utilisation: Annotated[Fraction, AsShare] | None = None
    min_headroom: Growth | None = None
    max_usd_per_million_tokens: Positive | None = None
    max_gpus: PositiveInt | None = None
    confidence: Annotated[float, within(LEAST_CONFIDENCE, MOST_CONFIDENCE, "50% to 95%"), AsShare] | None = None


class DeploymentFile(Spec):
    """A user's own deploy.yaml: existing deployments, the demand that they serve, and a policy."""

    deployments: Annotated[tuple[Launched, ...], Constraint(min_length=1, max_length=256)]
    demand: Text | None = None
    policy: Policy = Policy()
