"""Options that commands share: declared once, with the field of a workload that each one sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import typer

from sizing.specs.errors import Fault


class Opt(NamedTuple):
    """One option: parameter name, type, spellings, help, the workload field it sets (None: handled by the command)."""

    name: str
    type: Any
    flags: tuple[str, ...]
    help: str
    panel: str
    field: str | None = None


MODEL = "Model and GPUs"
DEMAND = "Tokens and demand"
LIMITS = "Latency limits"
SERVING = "Serving"
PLANNING = "Planning and cost"
RESERVES, GROWTH, CLOUD, UNCERTAIN = "Reserves", "Growth", "Cloud and fleet", "Uncertainty"
PAID = "Ways to pay"
OPTIMISATIONS = "Optimisations"
SIMULATION = "Simulation"
TICKS = "Teaching simulator"
OUTPUT = "Output"

TEXT, WHOLE, NUMBER = str | None, int | None, float | None
DISAGGREGATE, SEARCHED = "--disaggregate", "auto"
POOLED = ("estimate", "compare", "curve", "sweep", "whatif", "step", "simulate")  # commands that take separate pools

MODEL_OPTIONS = (
    Opt("model", TEXT, ("--model", "-m"), "Catalogue name, Hugging Face id, config.json or its folder.", MODEL, "model"),
    Opt("gpu", TEXT, ("--gpu", "-g"), "GPU type, several with commas, a profile's path, or all. Default: the workload's, else all.", MODEL, "gpu"),
    Opt("task", TEXT, ("--task",), "generate; or embed, classify, score, which pool a prompt into one result: no output head, no decode.", MODEL, "task"),
    Opt("precision", TEXT, ("--precision",), "Weights: fp32, fp16, bf16, fp8, fp8_block, int8, int4, nvfp4, mxfp4; several with commas, or all. Default: the checkpoint's own.", MODEL),
    Opt("kv_precision", TEXT, ("--kv-precision", "--kv-cache-dtype"), "KV cache: auto, fp32, fp16, bf16, fp8, int8, nvfp4.", MODEL, "kv_precision"),
)  # fmt: skip
SERVING_OPTIONS = (
    Opt("engine", TEXT, ("--engine",), "vllm, sglang, tensorrt-llm (nim, trtllm), or name:version.", SERVING, "serving.engine"),
    Opt("tp", WHOLE, ("--tp",), "Tensor parallelism; all are tried without it.", SERVING, "serving.tp"),
    Opt("pp", WHOLE, ("--pp",), "Pipeline parallelism.", SERVING, "serving.pp"),
    Opt("ep", WHOLE, ("--ep",), "Expert parallelism (MoE).", SERVING, "serving.ep"),
    Opt("dp", WHOLE, ("--dp",), "Attention data parallelism inside a replica.", SERVING, "serving.dp"),
    Opt("cp", WHOLE, ("--cp", "--prefill-context-parallel-size"), "Context parallelism: GPUs, on top of the others, that share each prompt and its cache by tokens.", SERVING, "serving.cp"),
    Opt("dcp", WHOLE, ("--dcp", "--decode-context-parallel-size"), "Decode context parallelism: of the TP GPUs that hold the same cache (MLA, few KV heads), how many share it by tokens.", SERVING, "serving.dcp"),
    Opt("all2all_backend", TEXT, ("--all2all-backend",), "How tokens reach experts under --dp and --ep: allgather (default), low_latency or high_throughput (DeepEP).", SERVING, "serving.all2all_backend"),
    Opt("expert_imbalance", NUMBER, ("--expert-imbalance",), "Load of the busiest expert rank over the mean, as measured: 1.2; that of random routing without it.", SERVING, "serving.expert_imbalance"),
    Opt("memory_fraction", NUMBER, ("--gpu-memory-utilization", "--memory-fraction"), "The engine's share of GPU memory.", SERVING, "serving.memory_fraction"),
    Opt("max_model_len", WHOLE, ("--max-model-len",), "Longest sequence to hold.", SERVING, "serving.max_model_len"),
    Opt("max_num_seqs", WHOLE, ("--max-num-seqs",), "Most sequences running at once.", SERVING, "serving.max_num_seqs"),
    Opt("max_num_batched_tokens", WHOLE, ("--max-num-batched-tokens",), "Token budget of one step.", SERVING, "serving.max_num_batched_tokens"),
    Opt("cuda_graphs_gib", NUMBER, ("--cuda-graphs-gib",), "CUDA-graph memory from the engine's log, in place of the usual.", SERVING, "serving.cuda_graphs_gib"),
)  # fmt: skip
OPTIMISATION_OPTIONS = (
    Opt("speculative", TEXT, ("--speculative",), "Speculative decoding, METHOD[:TOKENS][@ACCEPTANCE[/...]]: eagle3, eagle3:3@0.75, eagle3:3@0.8/0.7/0.6 (by depth), ngram:4@0.5, draft:llama-3.2-1b:4@0.7 (llmsize explain speculative).", OPTIMISATIONS, "optimisations.speculative"),
    Opt("sparsity", TEXT, ("--sparsity",), "Structured sparsity of the weights: 2:4.", OPTIMISATIONS, "optimisations.sparsity"),
    Opt("prefix_hit", TEXT, ("--prefix-hit",), "Share of each prompt found in the prefix cache: 0.3, 30%.", OPTIMISATIONS, "optimisations.prefix.hit"),
    Opt("prefix_shared", WHOLE, ("--prefix-shared",), "Tokens of a prompt that live requests share and the cache holds once.", OPTIMISATIONS, "optimisations.prefix.shared_tokens"),
    Opt("prefix_distinct", WHOLE, ("--prefix-distinct",), "Different shared prefixes in all, 1 by default; each replica holds all of them, or its part under affinity.", OPTIMISATIONS, "optimisations.prefix.distinct"),
    Opt("turns", WHOLE, ("--turns",), "Turns of a conversation, each of which sends all before it again: --isl is then the first prompt, later ones grow, and the hit rate follows.", OPTIMISATIONS, "optimisations.prefix.turns"),
    Opt("think_time", TEXT, ("--think-time",), "Time between an answer and the conversation's next turn, 30s: how many caches must be kept meanwhile.", OPTIMISATIONS, "optimisations.prefix.think_time_s"),
    Opt("prefix_routing", TEXT, ("--prefix-routing",), "Router over replicas: affinity (prefix-aware: a conversation stays with its cache) or random (the default; round-robin too).", OPTIMISATIONS, "optimisations.prefix.routing"),
    Opt("lora", TEXT, ("--lora",), "LoRA adapters on the GPU at once, SLOTSxRANK[+experts]: 16x64, 16x64+experts (routed ones too).", OPTIMISATIONS, "optimisations.lora"),
    Opt("images", TEXT, ("--images",), "Images of a request, NxHxW in pixels: 2x1024x768.", OPTIMISATIONS, "optimisations.images"),
    Opt("kv_offload", TEXT, ("--kv-offload",), "Share of each prompt whose cache comes back from host memory, SHARE[@GB_PER_S]: 0.5, 0.5@40.", OPTIMISATIONS, "optimisations.kv_offload"),
)  # fmt: skip
DISAGGREGATION_OPTIONS = (
    Opt("disaggregate", TEXT, (DISAGGREGATE,), "Separate pools for prefill and decode: without a value the search lays both out; else prefill=POOL,decode=POOL with POOL [COUNTx][GPU][:LAYOUT], as prefill=h100-sxm:tp2,decode=2xh200-sxm:tp4.", OPTIMISATIONS, "optimisations.disaggregate"),
)  # fmt: skip
# What these options mean to a command that looks at a single layout.
ONE_LAYOUT_HELP = {
    "gpu": "GPU type (llmsize gpus) or a profile's path; one.",
    "precision": "Weights: fp32, fp16, bf16, fp8, fp8_block, int8, int4, nvfp4 or mxfp4. Default: the checkpoint's own.",
    "tp": "Tensor parallelism, 1 by default.",
    "pp": "Pipeline parallelism, 1 by default.",
    "ep": "Expert parallelism (MoE), 1 by default.",
    "dp": "Attention data parallelism inside a replica, 1 by default.",
    "max_model_len": "Longest sequence to hold; the model's maximum by default.",
    "disaggregate": "Separate pools, prefill=POOL,decode=POOL with POOL [COUNTx][GPU][:LAYOUT], as prefill=2xh100-sxm:tp2,decode=h200-sxm:tp4; what is left out is one replica as -g, --tp ... say.",
}
# What takes memory alone says nothing of a step's time.
MEMORY_ALONE = ("memory_fraction", "cuda_graphs_gib")


def for_one_layout(options: Iterable[Opt]) -> tuple[Opt, ...]:
    """Return the options as a command takes them that looks at one GPU type, one precision and one layout."""
    return tuple(option._replace(help=ONE_LAYOUT_HELP.get(option.name, option.help)) for option in options)


MEMORY_OPTIONS = for_one_layout((*MODEL_OPTIONS, *SERVING_OPTIONS, *OPTIMISATION_OPTIONS))
STEP_OPTIONS = tuple(option for option in MEMORY_OPTIONS if option.name not in MEMORY_ALONE)
DEMAND_OPTIONS = (
    Opt("isl", WHOLE, ("--isl",), "Mean prompt length in tokens; of conversations (--turns) the first prompt.", DEMAND, "tokens.isl"),
    Opt("osl", WHOLE, ("--osl",), "Mean output length in tokens.", DEMAND, "tokens.osl"),
    Opt("isl_max", WHOLE, ("--isl-max",), "Longest prompt.", DEMAND, "tokens.isl_max"),
    Opt("osl_max", WHOLE, ("--osl-max",), "Longest output.", DEMAND, "tokens.osl_max"),
    Opt("rps", NUMBER, ("--rps",), "Demand in requests/s at the peak.", DEMAND, "demand.requests_per_s"),
    Opt("concurrency", WHOLE, ("--concurrency",), "Demand in requests in flight, over all replicas.", DEMAND, "demand.concurrency"),
    Opt("dau", NUMBER, ("--dau",), "Demand in daily active users.", DEMAND, "demand.daily_active_users"),
    Opt("requests_per_user", NUMBER, ("--requests-per-user",), "Requests of a user in a day.", DEMAND, "planning.requests_per_user_per_day"),
    Opt("active_hours", NUMBER, ("--active-hours",), "Hours of a day in which users are active.", DEMAND, "planning.active_hours"),
    Opt("peak_to_mean", NUMBER, ("--peak-to-mean",), "Peak over mean within the active hours.", DEMAND, "planning.peak_to_mean"),
    Opt("mode", TEXT, ("--mode",), "streaming, sequential or offline.", DEMAND, "mode"),
    Opt("gpus", WHOLE, ("--gpus",), "Budget of GPUs that the demand must fit in. For what they can serve, give no demand: a workload without one, or -m, --isl and --osl alone.", DEMAND),
)  # fmt: skip
PEAK_OPTIONS = (
    Opt("mean_rps", NUMBER, ("--mean-rps",), "Demand in requests/s on average around the clock; the peak comes from what follows.", DEMAND, "demand.mean_requests_per_s"),
    Opt("profile", TEXT, ("--profile",), "Load by hour: office, consumer, global, batch-at-night, or the path of a profile.", DEMAND, "planning.profile"),
    Opt("percentile", TEXT, ("--percentile",), "Size for this percentile of the requests that arrive in a second (Poisson): 95%.", DEMAND, "planning.poisson_percentile"),
)  # fmt: skip
LIMIT_OPTIONS = (
    Opt("ttft", TEXT, ("--ttft",), "Time to first token: 500ms (mean), p95:500ms.", LIMITS, "limits.ttft"),
    Opt("itl", TEXT, ("--itl",), "Inter-token latency (TPOT): 30ms, p99:50ms.", LIMITS, "limits.itl"),
    Opt("e2e", TEXT, ("--e2e",), "End-to-end latency: 5s.", LIMITS, "limits.e2e"),
)
PLANNING_OPTIONS = (
    Opt("max_utilisation", TEXT, ("--max-utilisation",), "Share of the highest stable rate to run at: 0.8, 80%.", PLANNING, "planning.max_utilisation"),
    Opt("headroom", TEXT, ("--headroom",), "Growth to add to the demand: 0.2, 20%.", PLANNING, "planning.headroom"),
    Opt("objective", TEXT, ("--objective",), "gpus, cost or energy.", PLANNING, "planning.objective"),
    Opt("conservative", bool, ("--conservative",), "Size on the worse edges of the error bands: limits hold where latencies and rates turn out as far off as 8 in 10 published measurements are.", PLANNING),
    Opt("price", NUMBER, ("--price",), "$ per GPU-hour in place of the profile's.", PLANNING),
)  # fmt: skip
PLAN_OPTIONS = (
    Opt("spare", WHOLE, ("--spare",), "Spare replicas on top of those that the peak takes: N+K.", RESERVES),
    Opt("availability", TEXT, ("--availability",), "Share of time in which enough replicas are up: 99.9%; needs --node-availability, or --mtbf and --mttr.", RESERVES),
    Opt("node_availability", TEXT, ("--node-availability",), "Share of time in which a node is up: 99%.", RESERVES),
    Opt("mtbf", TEXT, ("--mtbf",), "Mean time between failures of a node: 5000h, 300d, 2y.", RESERVES),
    Opt("mttr", TEXT, ("--mttr",), "Mean time to repair a node: 8h, 2d.", RESERVES),
    Opt("failures", TEXT, ("--failures",), "What fails together: replica (each by itself, the default) or node (all replicas on it).", RESERVES),
    Opt("maintenance", bool, ("--maintenance",), "Keep the size with one node out of service, on top of spare replicas.", RESERVES),
    Opt("growth", TEXT, ("--growth",), "Growth of the demand a month: 5%.", GROWTH),
    Opt("start", TEXT, ("--from",), "Day of the plan, 2026-12 or 2026-12-31; today by default.", GROWTH),
    Opt("until", TEXT, ("--until",), "Month up to which the demand grows: 2027-12.", GROWTH),
    Opt("cloud", TEXT, ("--cloud",), "Provider whose on-demand price counts (aws, gcp, azure, lambda ...), in whole instances; with a profile they follow the load.", CLOUD),
    Opt("min_replicas", WHOLE, ("--min-replicas",), "Replicas of each workload that stay up at all hours, 1 by default.", CLOUD),
    Opt("spot", TEXT, ("--spot",), "Share of the GPU-hours above the reserved base that are spot: 50%.", CLOUD),
    Opt("move", TEXT, ("--move",), "What changes where a workload runs on another GPU type: NAME=GPU, several with commas.", CLOUD),
    Opt("uncertain", bool, ("--uncertain",), "GPUs and cost at P10, P50 and P90 from ranges (2..5) in the workload and the model's error band.", UNCERTAIN),
    Opt("price_uncertainty", TEXT, ("--price-uncertainty",), "How far prices may turn out higher or lower: 20%.", UNCERTAIN, "planning.price_uncertainty"),
    Opt("seed", WHOLE, ("--seed",), "Seed of the draws; equal seeds give equal output.", UNCERTAIN),
    Opt("plot", TEXT, ("--plot",), "Draw load and capacity over the hours into FILE.svg, .png or .pdf (llmsize[plot]).", OUTPUT),
)  # fmt: skip
COST_OPTIONS = (
    Opt("own", TEXT, ("--own",), "Own servers: hgx-h100, dgx-h100, hgx-h200, or a file with their price, power, hosting ...", PAID),
    Opt("cloud", TEXT, ("--cloud",), "Providers to rent from, with commas: aws,lambda; on demand, or a kind: nebius:spot.", PAID),
    Opt("api", TEXT, ("--api",), "An API's $ per million input and output tokens: 1.0,3.0.", PAID),
    Opt("split", TEXT, ("--split",), "How input and output share a request's cost: the price of an output token over an input token (3), or time. Default: the API's ratio, else time.", PAID),
    Opt("plot", TEXT, ("--plot",), "Draw yearly cost against requests a day into FILE.svg, .png or .pdf (llmsize[plot]).", OUTPUT),
)  # fmt: skip
SIMULATION_OPTIONS = (
    Opt("policy", TEXT, ("--policy",), "engine, static, dynamic, inflight, one-prefill, chunked; several with commas run side by side. Default: the engine's own (inflight in ticks).", SIMULATION),
    Opt("replicas", WHOLE, ("--replicas",), "Engine instances, 1 by default.", SIMULATION),
    Opt("slots", WHOLE, ("--slots",), "Most requests running at once on a replica (on each attention group of it); caps --max-num-seqs.", SIMULATION),
    Opt("batch_size", WHOLE, ("--batch-size",), "Dynamic batching: requests that make a batch. Default: every slot.", SIMULATION),
    Opt("batch_window", TEXT, ("--batch-window",), "Dynamic batching: the longest wait for a batch, 100ms (ticks: a number).", SIMULATION),
    Opt("requests", WHOLE, ("--requests",), "Requests to send; with no rate and no concurrency, all at once.", SIMULATION),
    Opt("arrivals", TEXT, ("--arrivals",), "Of a rate: even, poisson, gamma:SHAPE (below 1 clumps); at-once.", SIMULATION),
    Opt("trace", TEXT, ("--trace",), "Arrivals and lengths from a CSV or JSON-lines file, .gz too.", SIMULATION),
    Opt("isl_std", NUMBER, ("--isl-std",), "Standard deviation of prompt lengths.", SIMULATION),
    Opt("osl_std", NUMBER, ("--osl-std",), "Standard deviation of output lengths.", SIMULATION),
    Opt("length_shape", TEXT, ("--length-shape",), "lognormal or normal lengths.", SIMULATION),
    Opt("length_ratio", NUMBER, ("--length-ratio",), "Lengths uniform from this share of the given one to it: 0.8.", SIMULATION),
    Opt("routing", TEXT, ("--routing",), "random (default), round-robin, least-requests or power-of-two over replicas.", SIMULATION),
    Opt("seed", WHOLE, ("--seed",), "Seed of all chance; equal seeds give equal output.", SIMULATION),
    Opt("limit", TEXT, ("--limit",), "End of the run: 60s, 10min (ticks: a number); without --requests as many are sent as come until then.", SIMULATION),
)  # fmt: skip
TICK_OPTIONS = (
    Opt("ticks", bool, ("--ticks",), "Count artificial ticks, without model or GPU.", TICKS),
    Opt("prefill", NUMBER, ("--prefill",), "Ticks of a prefill, 2 by default.", TICKS),
    Opt("prefill_chunks", WHOLE, ("--prefill-chunks",), "Steps that a prefill is cut into, 1 by default.", TICKS),
    Opt("rate", NUMBER, ("--rate",), "Requests per tick, evenly spaced.", TICKS),
    Opt("osl_mean", NUMBER, ("--osl-mean",), "Mean output length, 4 by default; normal with --osl-std.", TICKS),
)
FILE_OPTIONS = (
    Opt("plot", TEXT, ("--plot",), "Draw the run over time into FILE.svg, .png or .pdf (llmsize[plot]).", OUTPUT),
    Opt("requests_out", TEXT, ("--requests-out",), "Write one row a request into a CSV file.", OUTPUT),
)
FORMAT_OPTIONS = (
    Opt("format", TEXT, ("--format",), "table, json, csv or markdown.", OUTPUT),
    Opt("json", bool, ("--json",), "Short for --format json.", OUTPUT),
)
VERIFY_OPTIONS = (Opt("no_verify", bool, ("--no-verify",), "Skip the check of the answer by simulation.", OUTPUT),)
EXPLAIN_OPTIONS = (Opt("explain", bool, ("--explain",), "Show formula, values and sources of each number.", OUTPUT),)
QUIET_OPTIONS = (
    Opt("quiet", bool, ("--quiet", "-q"), "Print the GPU count alone; excludes --json and --format.", OUTPUT),
)


def with_values(arguments: Iterable[str]) -> list[str]:
    """Return a command line whose --disaggregate has a value: what follows it, else the search's.

    An option is none, nor a workload; what names neither is a workload where nothing else says what to serve.
    """
    given, found = list(arguments), []
    for number, argument in enumerate(given):
        found.append(argument)
        if argument == DISAGGREGATE:
            after, others = given[number + 1 :][:1], (*given[1:number], *given[number + 2 :])
            if not all(_is_value(word, others) for word in after or ["-"]):
                found.append(SEARCHED)
    return found


def _is_value(word: str, others: Sequence[str]) -> bool:
    """Return whether a word is, or is meant to be, the value of --disaggregate."""
    if "=" in word or word.lower() == SEARCHED or not word.strip():
        return True
    if word.startswith("-") or _is_workload(word):
        return False
    return any(other.startswith(("-m", "--model")) or _is_workload(other) for other in others)


def _is_workload(word: str) -> bool:
    """Return whether a word names a workload: a file, or a ready one."""
    from sizing.catalog.shelf import find, is_path
    from sizing.catalog.workloads import SHELF
    from sizing.specs.errors import InputError

    with suppress(InputError):
        return is_path(word) or bool(find(word, SHELF))
    return False


def unpooled(command: str, field: str) -> Fault:
    """Return the fault of separate pools asked of a command that has none."""
    return Fault(f"{command} takes no separate pools", field=field, allowed=f"with {', '.join(POOLED)}")


def takes(options: Iterable[Opt]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command shared options after its own parameters; it receives them as keywords."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if option.type is bool else None,
                annotation=Annotated[
                    option.type,
                    typer.Option(
                        *option.flags, help=option.help, rich_help_panel=option.panel, **_reading(option.type)
                    ),
                ],
            )
            for option in options
        ]
        command.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
        return command

    return decorate


def _reading(kind: Any) -> dict[str, Any]:
    """Return how the text of a number is read, and its name in help; other options take what they are given."""
    if kind == WHOLE:
        return {"parser": _number(int, "whole number"), "metavar": "INTEGER"}
    if kind == NUMBER:
        return {"parser": _number(float, "number"), "metavar": "FLOAT"}
    return {}


def _number(kind: Callable[[str], float], noun: str) -> Callable[[str], float]:
    """Return what reads a number, and says in plain words that a text is none."""

    def read(text: str) -> float:
        # Python reads 1_000 and the digits of all scripts; files and other options do not.
        if text.isascii() and "_" not in text:
            with suppress(ValueError):
                return kind(text)
        raise typer.BadParameter(f"{text!r} is no {noun}")

    return read


def overrides(options: Iterable[Opt], values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (workload field -> value given, workload field -> option), for the options that set a field.

    A demand option replaces the file's whole demand, so the demand fields come as one mapping.
    """
    fields = {option.field: option for option in options if option.field}
    given: dict[str, Any] = {}
    demand: dict[str, Any] = {}
    for field, option in fields.items():
        value = values.get(option.name)
        if value is None:
            continue
        if field.startswith("demand."):
            demand[field.removeprefix("demand.")] = value
        else:
            given[field] = comma_separated(value) if field == "gpu" else value
    if demand:
        given["demand"] = demand
    names = {field: option.flags[0] for field, option in fields.items()}
    names["demand"] = ", ".join(fields[f"demand.{key}"].flags[0] for key in demand) or "--rps, --concurrency, --dau"
    return given, names


def comma_separated(text: str) -> list[str]:
    """Split a list given with commas; empty and repeated parts vanish."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
