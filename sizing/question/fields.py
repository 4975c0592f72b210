"""The options of a question (name, type, spellings, help, workload field), and the options that a user stated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NewType

from sizing.question.values import comma_separated, whole_number
from sizing.specs.errors import Fault, InputError
from sizing.specs.units import parse_number, parse_share

YES, NO = frozenset({"yes", "true", "on", "1"}), frozenset({"no", "false", "off", "0"})


class Field(NamedTuple):
    """An option: parameter name, type, spellings, help, help panel, and its workload field (None: not in a workload)."""

    name: str
    type: Any
    flags: tuple[str, ...]
    help: str
    panel: str
    field: str | None = None

    def spelt(self, value: Any) -> str:
        """The first spelling of a value: of a switch that is off, --no-... where it has one."""
        on, _, off = self.flags[0].partition("/")
        return off if value is False and off else on


MODEL = "Model and GPUs"
DEMAND = "Tokens and demand"
LIMITS = "Latency limits"
SERVING = "Serving"
PLANNING = "Planning and cost"
OPTIMISATIONS = "Optimisations"

OF_ITS_OWN = frozenset({"closed_loop", "think_time", "within"})  # details of a demand that state none by themselves
SESSION = "sessions."  # the prefix of the fields of a demand in sessions
Share = NewType("Share", float)
Prices = NewType("Prices", str)  # or one number
TEXT, WHOLE, NUMBER, SHARE, SWITCH = str | None, int | None, float | None, Share | None, bool | None
PRICE, LISTED = Prices | None, list[str] | None
CONFIGURED = "configured"  # the key, among option values, of the places of settings by option name
DISAGGREGATE = "--disaggregate"
# Commands that take separate pools.
POOLED = ("estimate", "compare", "curve", "sweep", "whatif", "step", "simulate", "cost", "report", "deploy")

QUESTION_OPTIONS = (
    Field("model", TEXT, ("--model", "-m"), "Model: a name of the catalogue (llmsize models), a Hugging Face id, or the path of a config.json or of its folder.", MODEL, "model"),
    Field("gpu", TEXT, ("--gpu", "-g"), "GPU type (llmsize gpus) or the path of a profile; several with commas, or all. 8xh100 also means --gpus 8. Default: the workload's; else common data-centre GPUs are compared.", MODEL, "gpu"),
    Field("task", TEXT, ("--task",), "What the model does: generate; or embed, classify or score, which give one result for a prompt and generate no tokens.", MODEL, "task"),
    Field("precision", TEXT, ("--precision", "--quantization"), "Precision of the weights: fp32, fp16, bf16, fp8, fp8_block, int8, int4, nvfp4, mxfp4; several with commas, or all. Default: that of the checkpoint.", MODEL),
    Field("kv_precision", TEXT, ("--kv-precision", "--kv-cache-dtype"), "Precision of the KV cache: auto (that of the checkpoint), fp32, fp16, bf16, fp8, int8, nvfp4.", MODEL, "kv_precision"),
    Field("isl", WHOLE, ("--isl", "--input-len"), "Mean length of a prompt in tokens: 2000 or 2k. With --turns: of the first prompt.", DEMAND, "tokens.isl"),
    Field("osl", WHOLE, ("--osl", "--output-len"), "Mean length of an output in tokens.", DEMAND, "tokens.osl"),
    Field("isl_max", WHOLE, ("--isl-max",), "Length of the longest prompt in tokens. Default: --isl.", DEMAND, "tokens.isl_max"),
    Field("osl_max", WHOLE, ("--osl-max",), "Length of the longest output in tokens. Default: --osl.", DEMAND, "tokens.osl_max"),
    Field("rps", NUMBER, ("--rps", "--qps"), "Demand: requests/s at the busiest time.", DEMAND, "demand.requests_per_s"),
    Field("users", NUMBER, ("--users",), "Demand: concurrent users. Each sends the next request a --think-time (30s) after an answer, or --requests-per-session requests in a --session-length.", DEMAND, "demand.concurrent_users"),
    Field("requests_per_session", NUMBER, ("--requests-per-session",), "Requests that each of the --users sends in a session.", DEMAND, "demand.sessions.requests_per_session"),
    Field("session_length", TEXT, ("--session-length",), "Duration of a session of the --users: 10min.", DEMAND, "demand.sessions.session_length"),
    Field("concurrency", WHOLE, ("--concurrency",), "Demand: mean number of requests in flight over all replicas. They arrive at random times.", DEMAND, "demand.concurrency"),
    Field("closed_loop", bool, ("--closed-loop",), "With --concurrency: always exactly this number in flight, as the clients of a benchmark hold it.", DEMAND, "demand.closed_loop"),
    Field("dau", NUMBER, ("--dau",), "Demand: daily active users.", DEMAND, "demand.daily_active_users"),
    Field("documents", NUMBER, ("--documents",), "Demand: requests of offline work that are all done --within a time: 2M.", DEMAND, "demand.documents"),
    Field("within", TEXT, ("--within",), "Time in which all --documents are done: 6h.", DEMAND, "demand.within"),
    Field("requests_per_user", NUMBER, ("--requests-per-user",), "Requests that a user sends in a day.", DEMAND, "planning.requests_per_user_per_day"),
    Field("active_hours", NUMBER, ("--active-hours",), "Hours of a day in which users are active.", DEMAND, "planning.active_hours"),
    Field("peak_to_mean", NUMBER, ("--peak-to-mean",), "Busiest time divided by the mean of the active hours.", DEMAND, "planning.peak_to_mean"),
    Field("mode", TEXT, ("--mode",), "How answers are used: streaming (tokens as they come), sequential (whole answers) or offline (no limits on latency).", DEMAND, "mode"),
    Field("gpus", WHOLE, ("--gpus",), "GPUs that must be enough for the demand. Without a demand the answer is what these GPUs can serve.", DEMAND, "gpus"),
    Field("mean_rps", NUMBER, ("--mean-rps",), "Demand: mean requests/s around the clock. --profile, --peak-to-mean or --percentile give the peak.", DEMAND, "demand.mean_requests_per_s"),
    Field("profile", TEXT, ("--profile",), "Load in each hour of the day: office, consumer, global, batch-at-night, or the path of a profile.", DEMAND, "planning.profile"),
    Field("percentile", TEXT, ("--percentile",), "Size for this percentile of the arrivals in a second, which are random (Poisson): 95%.", DEMAND, "planning.poisson_percentile"),
    Field("ttft", TEXT, ("--ttft",), "Limit on the time to first token: 500ms (mean) or p95:500ms. Default: no limit.", LIMITS, "limits.ttft"),
    Field("itl", TEXT, ("--itl", "--tpot"), "Limit on the inter-token latency (TPOT): 30ms (mean) or p99:50ms. Default: no limit.", LIMITS, "limits.itl"),
    Field("e2e", TEXT, ("--e2e",), "Limit on the end-to-end latency: 5s (mean) or p95:5s. Default: no limit.", LIMITS, "limits.e2e"),
    Field("engine", TEXT, ("--engine",), "Serving engine: vllm, sglang or tensorrt-llm (also nim, trtllm); with a version as vllm:0.19.0 (llmsize engines).", SERVING, "serving.engine"),
    Field("tp", WHOLE, ("--tp", "--tensor-parallel-size"), "Tensor parallelism: GPUs that share each layer. Default: the search tries several.", SERVING, "serving.tp"),
    Field("pp", WHOLE, ("--pp", "--pipeline-parallel-size"), "Pipeline parallelism: stages that hold some of the layers each. Default: the search chooses.", SERVING, "serving.pp"),
    Field("ep", WHOLE, ("--ep",), "Expert parallelism: GPUs among which the experts of a MoE model are divided. Default: the search chooses.", SERVING, "serving.ep"),
    Field("dp", WHOLE, ("--dp",), "Data parallelism of attention inside a replica: groups of GPUs, each with its own requests. Default: the search chooses.", SERVING, "serving.dp"),
    Field("cp", WHOLE, ("--cp", "--prefill-context-parallel-size"), "Context parallelism: this many times as many GPUs, which divide the tokens of each prompt and of its cache.", SERVING, "serving.cp"),
    Field("dcp", WHOLE, ("--dcp", "--decode-context-parallel-size"), "Decode context parallelism: TP GPUs that would hold the same cache (MLA, few KV heads) divide its tokens among this many.", SERVING, "serving.dcp"),
    Field("all2all_backend", TEXT, ("--all2all-backend",), "How tokens are sent to their experts with --dp and --ep: allgather (default within a node), low_latency (default between nodes) or high_throughput (DeepEP).", SERVING, "serving.all2all_backend"),
    Field("redundant_experts", WHOLE, ("--redundant-experts", "--num-redundant-experts", "--ep-num-redundant-experts"), "Additional copies of popular experts in each layer (EPLB). Example: 32 copies of 256 experts fill the 288 slots of EP72.", SERVING, "serving.redundant_experts"),
    Field("expert_imbalance", NUMBER, ("--expert-imbalance",), "Measured load of the busiest expert GPU, divided by the mean: 1.2. Default: that of random routing.", SERVING, "serving.expert_imbalance"),
    Field("memory_fraction", SHARE, ("--gpu-memory-utilization", "--memory-fraction", "--mem-fraction-static"), "Share of the GPU's memory that the engine uses: 0.9 or 90%. Default: that of the engine.", SERVING, "serving.memory_fraction"),
    Field("max_model_len", WHOLE, ("--max-model-len",), "Longest sequence, prompt and output, in tokens. Default: the longest of the workload.", SERVING, "serving.max_model_len"),
    Field("max_num_seqs", WHOLE, ("--max-num-seqs",), "Most sequences that run at once on a replica. Default: that of the engine.", SERVING, "serving.max_num_seqs"),
    Field("max_num_batched_tokens", WHOLE, ("--max-num-batched-tokens",), "Most tokens that one step of the engine computes. Default: that of the engine.", SERVING, "serving.max_num_batched_tokens"),
    Field("cuda_graphs_gib", NUMBER, ("--cuda-graphs-gib",), "Memory of the CUDA graphs in GiB, as the engine's log states it. Default: the usual amount for the engine.", SERVING, "serving.cuda_graphs_gib"),
    Field("kv_cache_bytes", TEXT, ("--kv-cache-memory-bytes",), "Size of the KV cache on each GPU: 25GB. It replaces the memory fraction.", SERVING, "serving.kv_cache_bytes"),
    Field("max_total_tokens", WHOLE, ("--max-total-tokens",), "Most tokens that the KV cache of a replica holds. Default: what fits.", SERVING, "serving.max_total_tokens"),
    Field("prefix_caching", SWITCH, ("--enable-prefix-caching/--no-enable-prefix-caching", " /--disable-radix-cache"), "Prefix caching on or off. With it, hybrid models keep more recurrent states. Default: that of the engine version.", SERVING, "serving.prefix_caching"),
    Field("enforce_eager", SWITCH, ("--enforce-eager", "--disable-cuda-graph"), "Run without CUDA graphs: this frees their memory, but the host starts each operation, which takes longer.", SERVING, "serving.enforce_eager"),
    Field("cpu_offload_gb", NUMBER, ("--cpu-offload-gb",), "GiB of each GPU's weights that stay in host memory and are read over PCIe in every step.", SERVING, "serving.cpu_offload_gb"),
    Field("offload_backend", TEXT, ("--offload-backend",), "How offloaded weights reach the GPU: uva (read in every step) or prefetch (copied while other layers run).", SERVING, "serving.offload_backend"),
    Field("pp_layers", TEXT, ("--pp-layers",), "Number of layers in each pipeline stage: 20,22. Default: equal parts.", SERVING, "serving.pp_layers"),
    Field("limit_mm_per_prompt", TEXT, ("--limit-mm-per-prompt",), "Most images of a prompt, in vLLM's format: image=2, or '{\"image\": 0, \"video\": 0}'. With 0 of everything the encoder is not loaded.", SERVING, "serving.limit_mm_per_prompt"),
    Field("mamba_full_memory_ratio", NUMBER, ("--mamba-full-memory-ratio",), "SGLang: memory of the recurrent states, divided by the memory of the KV cache.", SERVING, "serving.mamba_full_memory_ratio"),
    Field("max_mamba_cache_size", WHOLE, ("--max-mamba-cache-size",), "SGLang: number of recurrent states to hold. It replaces the ratio.", SERVING, "serving.max_mamba_cache_size"),
    Field("language_model_only", SWITCH, ("--language-model-only",), "Serve a multimodal model without its image encoder.", SERVING, "serving.language_model_only"),
    Field("speculative", TEXT, ("--speculative",), "Speculative decoding: METHOD[:TOKENS][@ACCEPTANCE]. Examples: eagle3, eagle3:3@0.75, eagle3:3@0.8/0.7/0.6 (by depth), ngram:4@0.5, draft:llama-3.2-1b:4@0.7 (llmsize explain speculative).", OPTIMISATIONS, "optimisations.speculative"),
    Field("sparsity", TEXT, ("--sparsity",), "Structured sparsity of the weights: 2:4.", OPTIMISATIONS, "optimisations.sparsity"),
    Field("prefix_hit", TEXT, ("--prefix-hit",), "Share of each prompt found in the prefix cache: 0.3, 30%.", OPTIMISATIONS, "optimisations.prefix.hit"),
    Field("prefix_shared", WHOLE, ("--prefix-shared",), "Tokens at the start of a prompt that running requests share, so that the cache holds them once.", OPTIMISATIONS, "optimisations.prefix.shared_tokens"),
    Field("prefix_distinct", WHOLE, ("--prefix-distinct",), "Number of different shared prefixes, 1 by default. Each replica holds all of them, or its part with --prefix-routing affinity.", OPTIMISATIONS, "optimisations.prefix.distinct"),
    Field("turns", WHOLE, ("--turns",), "Turns of a conversation. Each turn sends the whole conversation again: --isl is the first prompt, later prompts are longer, and the cache hit rate is computed.", OPTIMISATIONS, "optimisations.prefix.turns"),
    Field("think_time", TEXT, ("--think-time",), "Time from an answer to the user's next request: 30s. It applies to --users and to --turns, whose caches are kept for that time.", OPTIMISATIONS, "optimisations.prefix.think_time_s"),
    Field("prefix_routing", TEXT, ("--prefix-routing",), "How requests are sent to replicas: affinity (to the replica that has their prefix in its cache) or random (default; also for round-robin).", OPTIMISATIONS, "optimisations.prefix.routing"),
    Field("lora", TEXT, ("--lora",), "LoRA adapters in GPU memory at once: SLOTSxRANK, as 16x64; 16x64+experts if experts have adapters too.", OPTIMISATIONS, "optimisations.lora"),
    Field("images", TEXT, ("--images",), "Images of each request: NUMBERxHEIGHTxWIDTH in pixels, as 2x1024x768.", OPTIMISATIONS, "optimisations.images"),
    Field("kv_offload", TEXT, ("--kv-offload",), "Share of each prompt whose cache is read back from host memory: 0.5; with the speed in GB/s as 0.5@40.", OPTIMISATIONS, "optimisations.kv_offload"),
    Field("max_utilisation", TEXT, ("--max-utilisation", "--max-utilization"), "Most of the highest stable rate that a replica may be used for: 80% or 0.8.", PLANNING, "planning.max_utilisation"),
    Field("headroom", TEXT, ("--headroom",), "Reserve to add to the demand: 20% or 0.2.", PLANNING, "planning.headroom"),
    Field("objective", TEXT, ("--objective",), "What to minimise: gpus, cost or energy. Default: cost if several GPU types with prices are compared, else gpus.", PLANNING, "planning.objective"),
    Field("layouts", TEXT, ("--layouts",), "Layouts to try: usual (TP 1, 2, 4, 8 within a node; for MoE models also attention DP with EP; others only if none of these is enough), pipelines, or all.", PLANNING, "planning.layouts"),
    Field("confidence", TEXT, ("--confidence",), "Share of similar published runs that must keep the limits, from 50% to 95%: 90%. Default: the prediction, raised to a share of 50% where it has less.", PLANNING),
    Field("conservative", bool, ("--conservative",), "The same as --confidence 90%.", PLANNING),
    Field("price", PRICE, ("--price",), "Price in $ per GPU-hour: 2.5, or for each GPU type h100-sxm=2.5,h200-sxm=3.1. Default: the median of known prices (llmsize prices).", PLANNING),
    Field("provider", TEXT, ("--provider",), "Take the prices of this provider, on demand or of another kind: aws, nebius:spot (llmsize prices). GPU types that it does not offer are left out.", PLANNING),
    Field("set", LISTED, ("--set",), "Set any field of a workload: PATH=VALUE, as demand.requests_per_s=80. May be repeated.", PLANNING),
    Field("disaggregate", TEXT, (DISAGGREGATE,), "Prefill and decode on separate pools of GPUs. Without a value the search chooses both pools. Else prefill=POOL,decode=POOL, where POOL is [COUNTx][GPU][:LAYOUT]: prefill=h100-sxm:tp2,decode=2xh200-sxm:tp4.", OPTIMISATIONS, "optimisations.disaggregate"),
)  # fmt: skip


def of_panel(options: Iterable[Field], *panels: str) -> tuple[Field, ...]:
    """The options under some panels."""
    return tuple(option for option in options if option.panel in panels)


def named(options: Iterable[Field], *names: str) -> tuple[Field, ...]:
    """The options with some names."""
    return tuple(option for option in options if option.name in names)


def without(options: Iterable[Field], *names: str) -> tuple[Field, ...]:
    """The options except the ones with these names."""
    return tuple(option for option in options if option.name not in names)


def with_help(options: Iterable[Field], texts: Mapping[str, str]) -> tuple[Field, ...]:
    """The options with other help texts, by name."""
    return tuple(option._replace(help=texts.get(option.name, option.help)) for option in options)


MODEL_OPTIONS, LIMIT_OPTIONS, SERVING_OPTIONS = (of_panel(QUESTION_OPTIONS, name) for name in (MODEL, LIMITS, SERVING))
PEAK_OPTIONS = named(QUESTION_OPTIONS, "mean_rps", "profile", "percentile")
DEMAND_OPTIONS = tuple(option for option in of_panel(QUESTION_OPTIONS, DEMAND) if option not in PEAK_OPTIONS)
SET_OPTIONS = named(QUESTION_OPTIONS, "set")
PLANNING_OPTIONS = without(of_panel(QUESTION_OPTIONS, PLANNING), "set")
DISAGGREGATION_OPTIONS = named(QUESTION_OPTIONS, "disaggregate")
OPTIMISATION_OPTIONS = without(of_panel(QUESTION_OPTIONS, OPTIMISATIONS), "disaggregate")
WORKLOAD_OPTIONS = QUESTION_OPTIONS[:-1]  # all but separate pools
# Of one layout, without a load.
LAYOUT_OPTIONS = (*MODEL_OPTIONS, *SERVING_OPTIONS, *OPTIMISATION_OPTIONS, *DISAGGREGATION_OPTIONS)


def states_demand(option: Field) -> bool:
    """Whether an option states a demand by itself, and not a detail of another demand."""
    section, _, kind = (option.field or "").partition(".")
    return section == "demand" and kind not in OF_ITS_OWN and not kind.startswith(SESSION)


@dataclass(frozen=True, slots=True)
class Options:
    """Stated options: workload fields by path, and values that no workload has. `flags` are the options' spellings.

    `faults` are contradictions between options, and forms that a command does not take. `configured` names the options
    whose values are settings and were not given by the user now.
    """

    fields: Mapping[str, Any]
    flags: Mapping[str, str]
    precision: str | None = None
    price: float | str | None = None
    provider: str | None = None
    faults: tuple[Fault, ...] = ()
    configured: frozenset[str] = frozenset()

    def stated(self, fields: Iterable[Field]) -> tuple[tuple[Field, ...], dict[str, Any]]:
        """The stated options of workload fields, spelt as stated and without settings, and their values by name."""
        own = without(fields, *self.configured)
        given = [(field, field.field) for field in own if field.field and field.field in self.fields]
        spelt = tuple(field._replace(flags=(self.flags[path],)) for field, path in given)
        return spelt, {field.name: self.fields[path] for field, path in given}


_COUNTED_GPUS = re.compile(r"\s*([0-9]{1,7})\s*[xX]\s*([^,/\\]*[a-zA-Z][^,/\\]*)\Z")


def _counted(names: list[str], gpus: int | None, options: set[str]) -> tuple[list[str], int | None, tuple[Fault, ...]]:
    """GPU names without a count (`8xh100`), the count, and the fault of a count that is contradictory or of no use."""
    found = [match for name in names if (match := _COUNTED_GPUS.match(name))]
    if not found:
        return names, gpus, ()
    text, count = found[0][0].strip(), int(found[0][1])
    plain = [match[2].strip() if (match := _COUNTED_GPUS.match(name)) else name for name in names]
    if "gpus" not in options:
        allowed = ", ".join(f"--{name}" for name in ("tp", "replicas") if name in options)
        remedy = None if allowed else f"write {plain[0]}"
        fault = Fault(
            f"{text!r} counts GPUs, and here the layout says how many", None, None, "--gpu", allowed, remedy=remedy
        )
    elif len(names) > 1:
        message = f"{text!r} counts GPUs of one type, and several are named"
        fault = Fault(message, field="--gpu", allowed="one type, or --gpus N")
    elif gpus is not None and gpus != count:
        fault = Fault(f"{text!r} contradicts --gpus {gpus:,}", None, None, "--gpu", "one of them")
    else:
        return plain, count, ()
    return plain, gpus, (fault,)


def is_stated(field: Field, value: Any) -> bool:
    """Whether an option was given: zero and the "no" of a switch count as given; an unset flag does not."""
    return value is not None and (field.type is not bool or bool(value))


def read_value(field: Field, text: str) -> Any:
    """The value of an option, from the text of a command line, a setting or a variable. Raises ValueError for other text.

    What a workload reads itself stays text, so that it is checked with all other fields.
    """
    if field.type in (bool, SWITCH):
        word = text.strip().lower()
        if word not in YES | NO:
            raise ValueError(f"{text!r} is neither yes nor no")
        return word in YES
    if field.type == WHOLE:
        return _named(text, whole_number, "whole number")
    if field.type == NUMBER or (field.type == PRICE and "=" not in text):
        return _named(text, parse_number, "number")
    return parse_share(text) if field.type == SHARE and field.field is None else text


def _named(text: str, read: Callable[[str], float], noun: str) -> float:
    try:
        return read(text)
    except ValueError:
        raise ValueError(f"{text!r} is no {noun}") from None


def options_of(fields: Sequence[Field], values: Mapping[str, Any]) -> Options:
    """Collect the stated `values` of some fields by parameter name; None means not stated.

    A demand replaces the whole demand of a workload, so its fields come as one mapping.
    """
    of_workload = {field.field: field for field in fields if field.field}
    stated: dict[str, Any] = {
        path: value
        for path, field in of_workload.items()
        if (value := values.get(field.name)) is not None and is_stated(field, value)
    }
    flags = {path: field.flags[0] for path, field in of_workload.items()}
    by_path, twice = _by_path(values.get("set") or (), stated, flags)
    stated |= by_path
    flags |= {path: f"--set {path}" for path in by_path}
    given = {path: value for path, value in stated.items() if not path.startswith("demand.")}
    faults = tuple[Fault, ...]()
    if "gpu" in given:
        named = given["gpu"]
        names = comma_separated(named) if isinstance(named, str) else named
        given["gpu"], gpus, faults = _counted(names, given.get("gpus"), {field.name for field in fields})
        given |= {} if gpus is None else {"gpus": gpus}
    demand = {path.removeprefix("demand."): value for path, value in stated.items() if path.startswith("demand.")}
    flags["demand"] = ", ".join(flags[f"demand.{key}"] for key in demand) or "--rps, --users, --dau, --concurrency"
    if set(demand) - OF_ITS_OWN:
        given["demand"] = _demand(demand, given, flags)
    else:  # details of the workload's own demand
        given |= {f"demand.{name}": value for name, value in demand.items()}
    faults += twice
    prices = values.get("price"), values.get("provider")
    return Options(given, flags, values.get("precision"), *prices, faults, frozenset(values.get(CONFIGURED, ())))


_PATH = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*)\s*=(.*)", re.DOTALL)
_BY_PATH = "PATH=VALUE, as demand.requests_per_s=80"


def _by_path(
    texts: Sequence[str], stated: Mapping[str, Any], flags: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[Fault, ...]]:
    """The fields that --set states by path, read as in a workload file, and the faults of invalid texts."""
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    if texts:
        from sizing.catalog.yaml import parse  # loaded where a field is set
    for text in texts:
        match = _PATH.fullmatch(text.strip())
        if match is None:
            faults.append(Fault(f"{text!r} sets no field", field="--set", allowed=_BY_PATH))
            continue
        path = match[1]
        meant = _meant(path, flags)
        if meant is not None:
            faults.append(Fault("is no field", field=f"--set {path}", allowed=_BY_PATH, nearest=meant))
            continue
        twice = next((flags[each] for each in stated if _one_holds_the_other(path, each)), None)
        if twice is None and any(_one_holds_the_other(path, each) for each in found):
            twice = "another --set"
        if twice is not None:
            faults.append(Fault(f"contradicts {twice}", field=f"--set {path}", allowed="one of them"))
            continue
        try:
            found[path] = parse(match[2].strip(), "--set")
        except InputError as error:
            faults += [Fault(fault.message, field=f"--set {path}", allowed=fault.allowed) for fault in error.faults]
            continue
        if found[path] is None:
            faults.append(Fault("states no value", field=f"--set {path}", allowed=_BY_PATH))
    return found, tuple(faults)


def _one_holds_the_other(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _meant(path: str, flags: Mapping[str, str]) -> str | None:
    """The field meant by a path that ends in an option's name: demand.requests_per_s for demand.rps; else None."""
    section, _, last = path.rpartition(".")
    known = (field for field, flag in flags.items() if flag == f"--{last.replace('_', '-')}")
    return next((field for field in known if field != path and section in ("", field.rpartition(".")[0])), None)


THINK_TIME, TURNS = "optimisations.prefix.think_time_s", "optimisations.prefix.turns"


def _demand(demand: dict[str, Any], given: dict[str, Any], flags: dict[str, str]) -> dict[str, Any]:
    """The fields of a demand; a think time applies to the users and, where conversations have turns, to these too."""
    sessions = {path.removeprefix(SESSION): value for path, value in demand.items() if path.startswith(SESSION)}
    found = {path: value for path, value in demand.items() if not path.startswith(SESSION)}
    if sessions:
        flags["demand.sessions.concurrent_users"] = flags["demand.concurrent_users"]
        users = found.pop("concurrent_users", None)
        return {**found, "sessions": sessions if users is None else {"concurrent_users": users, **sessions}}
    if "concurrent_users" in found and THINK_TIME in given:
        flags["demand.think_time"] = flags[THINK_TIME]
        found["think_time"] = given[THINK_TIME] if TURNS in given else given.pop(THINK_TIME)
    return found


def sets_demand(values: Mapping[str, Any]) -> bool:
    """Whether --set states a part of a demand."""
    return any(text.strip().startswith("demand.") for text in values.get("set") or ())


WITH_POOLS = {
    "plan": ": cost prices both pools over a day, and estimate --headroom sizes them with a reserve",
}


def unpooled(command: str, field: str) -> Fault:
    """The fault of separate pools for a command that does not take them."""
    remedy = f"{', '.join(POOLED)} take them{WITH_POOLS.get(command, '')}"
    return Fault(f"{command} takes no separate pools", field=field, remedy=remedy)
