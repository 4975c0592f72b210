"""How engines are started: the flags of each version, a deployment as read or written, and the policy that it must keep."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sizing.specs.engine import Flag
from sizing.specs.optimisations import MOST_REPLICAS, Lora, Optimisations, Speculative
from sizing.specs.values import (
    AsShare,
    Fraction,
    GroupSize,
    NonNegative,
    OneFile,
    Positive,
    PositiveInt,
    ShareOfAll,
    Sourced,
    Spec,
    Text,
)
from sizing.specs.workload import KvPrecision, Precision, Serving

# What a flag states, in this project's words; the sizes of a layout as the engine counts them.
Term = Literal[
    "tp", "pp", "dp", "ep", "cp", "dcp", "attention_dp", "attention_dp_size", "expert_parallel", "all2all_backend", "deepep_mode",
    "memory_fraction", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_bytes", "max_total_tokens", "kv_precision",
    "precision", "prefix_caching", "no_prefix_caching", "enforce_eager", "cpu_offload_gb", "pp_layers", "limit_mm_per_prompt",
    "language_model_only", "mamba_full_memory_ratio", "max_mamba_cache_size", "lora", "lora_slots", "lora_rank", "spec_method",
    "spec_tokens", "spec_modules", "spec_model", "spec_verified", "spec_width", "role", "connector", "nodes", "node_rank", "head",
    "headless", "executor", "dp_local", "dp_start", "dp_head", "dp_backend", "eplb", "redundant_experts", "no_overlap",
]  # fmt: skip
SIZES: tuple[Term, ...] = ("tp", "pp", "dp", "ep", "cp", "dcp", "attention_dp_size")
TOKENS: tuple[Term, ...] = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_total_tokens")
# Terms that are whole numbers above 0, and shares of a whole.
COUNTS: tuple[Term, ...] = (
    *SIZES, *TOKENS, "max_mamba_cache_size", "lora_slots", "lora_rank", "spec_tokens", "spec_modules", "spec_verified", "spec_width",
    "nodes", "dp_local",
)  # fmt: skip
SHARES: tuple[Term, ...] = ("memory_fraction",)


Words = Annotated[dict[str, str], Field(default_factory=dict)]


class EngineFlag(Spec):
    """One flag: the term that it states, its spellings, and the versions that have it (`since`..`until`, both included).

    `off` are spellings that say no; a `switch` has no value, nor has a flag with `off`. `values` are the engine's words for
    ours, `also` other words of the engine and what they mean, `unknown` words that leave the term open. `key` is its place in the
    JSON value of the flag, or in the engine's `file` of settings; `env` is an environment variable in place of a flag. An
    `absent` one is on where its key is null. What is `read_only` is never written.
    """

    term: Term
    flags: tuple[Text, ...] = ()
    off: tuple[Text, ...] = ()
    switch: Flag = False
    values: Words
    also: Words
    unknown: tuple[Text, ...] = ()
    key: Text | None = None
    also_keys: tuple[Text, ...] = ()
    file: Flag = False
    env: Text | None = None
    absent: Flag = False
    read_only: Flag = False
    since: Text = "0.1"
    until: Text | None = None

    @property
    def takes_value(self) -> bool:
        """Whether a value follows the flag."""
        return not (self.switch or self.off)

    @property
    def name(self) -> str:
        """What a user writes: the first spelling, the key of the file, or the variable."""
        return self.flags[0] if self.flags else self.key or self.env or self.term


class EngineSettingsFile(Spec):
    """An engine's own file of settings: the flags that name it, newest first, and the name that is written.

    Where no flag has a key in it, its keys are the flags themselves, without hyphens before them.
    """

    flags: tuple[Text, ...]
    flag_until: Words
    name: Text


class Cluster(Spec):
    """What joins the nodes of an instance before its engine starts on the first: the command of that node, and of the others."""

    first: tuple[Text, ...]
    further: tuple[Text, ...]


class SideChannel(Spec):
    """The variables that state the address and the port at which an instance hands its caches over."""

    host: Text
    port: Text


class IgnoredFlags(Spec):
    """Flags, and keys of files and JSON values, that change nothing that is predicted: with a value, a JSON object, or none.

    Of `limited` flags and keys that holds for these values alone, and any other is a fault. The `of_model` override keys of the
    model's config.json, of which those of `model_keys` change nothing.
    """

    values: tuple[Text, ...] = ()
    objects: tuple[Text, ...] = ()
    switches: tuple[Text, ...] = ()
    keys: tuple[Text, ...] = ()
    limited: dict[str, tuple[Text, ...]] = Field(default_factory=dict)
    of_model: tuple[Text, ...] = ()
    model_keys: tuple[Text, ...] = ()


class EngineFlags(Sourced):
    """A file of hardware_profiles/launch: how one engine is started.

    `serves` are words with which its command begins, `images` parts of the names of its container images, `command` what is written.
    `tp_counts` says whether TP counts the GPUs of attention or of a whole stage, `sequences_of` whose running sequences are bounded, and
    `adapters` are the engine's own slots and rank where only that there are some is said. One that `holds_longest` starts only where
    its cache holds the longest sequence. Nodes of an instance meet at the first one's `head_port`, where the address states one, or
    in a `cluster`; or one `launcher`, which takes {nodes}, {node_gpus} and all {gpus}, starts a process for each GPU of all nodes.
    Instances of separate pools find each other by their `side_channel`.
    """

    name: Text
    serves: tuple[Text, ...]
    images: tuple[Text, ...]
    image: Text
    vendor_images: Words
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
    holds_longest: Flag = False
    file: EngineSettingsFile | None = None
    flags: tuple[EngineFlag, ...]
    ignored: IgnoredFlags
    note: Text | None = None

    def states(self, term: Term) -> bool:
        """Whether any version has a flag that states a term; else the engine chooses by itself."""
        return any(row.term == term for row in self.flags)


class BenchmarkTool(Spec):
    """A benchmark tool: the version whose flags are written, the file of its results, and its command.

    The load is open, of random arrivals at a rate, or closed, of requests in flight; the flag of `goals` takes limits (`ttft:500`).
    """

    version: Text
    result: Text
    command: Text
    open_load: Text
    closed_load: Text
    goals: Text | None = None


class LaunchFacts(OneFile, Sourced):
    """The file hardware_profiles/_launch.yaml: what manifests say beside an engine's flags."""

    FILE = "hardware_profiles/_launch.yaml"

    node_labels: dict[str, Text]
    label_keys: dict[str, Text]
    other_label_keys: tuple[Text, ...]
    instance_label_keys: tuple[Text, ...]
    resources: dict[str, Text]
    slice_resource: Text
    visible_devices: tuple[Text, ...]
    device_files: dict[str, tuple[Text, ...]]
    chosen_devices: dict[str, Text]
    closed_images: dict[str, Text]
    start_period_s: PositiveInt
    start_failures: PositiveInt
    probe_period_s: PositiveInt
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
        """The labels of nodes that name a GPU type."""
        return (*self.label_keys.values(), *self.other_label_keys)


Role = Literal["whole", "prefill", "decode"]


class Launched(Spec):
    """A deployment that exists or is to be made: equal replicas of one engine instance.

    `role` is what of a request they do; prefill and decode of one deployment are two of these. `reserved_gpus` are those that
    a replica's containers ask for, `connector` hands caches over from prefill to decode, `draft_checkpoint` is the head that drafts.
    """

    name: Text = "deployment"
    model: Text
    gpu: Text | None = None
    replicas: Annotated[int, Field(gt=0, le=MOST_REPLICAS, strict=True)] | None = None
    precision: Precision | None = None
    kv_precision: KvPrecision = "auto"
    serving: Serving = Serving.model_construct()
    speculative: Speculative | None = None
    lora: Lora | None = None
    role: Role = "whole"
    connector: Text | None = None
    draft_checkpoint: Text | None = None
    reserved_gpus: GroupSize | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_workloads_write(cls, data: object) -> object:
        """Read `speculative` and `lora` as a workload writes them."""
        if not isinstance(data, dict):
            return data
        asked = {name: data[name] for name in ("speculative", "lora") if isinstance(data.get(name), str)}
        return {**data, **{name: getattr(Optimisations.model_validate(asked), name) for name in asked}}


class Policy(Spec):
    """What a deployment must keep beside demand and limits.

    `max_utilisation` is the demand over the most that it serves within the limits, `min_headroom` the growth of the demand that
    it takes (0.2 is 20 %), `confidence` the share of published runs like it that keep the limits.
    """

    max_utilisation: Annotated[Fraction, AsShare] | None = None
    min_headroom: Annotated[NonNegative, AsShare] | None = None
    max_usd_per_million_tokens: Positive | None = None
    max_gpus: PositiveInt | None = None
    confidence: ShareOfAll | None = None


class DeploymentFile(Spec):
    """A user's own deploy.yaml: deployments as they exist, the demand that they serve, and a policy."""

    deployments: Annotated[tuple[Launched, ...], Field(min_length=1, max_length=256)]
    demand: Text | None = None
    policy: Policy = Policy.model_construct()
