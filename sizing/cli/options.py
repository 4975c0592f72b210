"""The options of commands in groups. `takes` adds them to a command, which receives their values as keywords."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NewType

import typer

from sizing.cli.progress import say_work
from sizing.question.fields import (
    DISAGGREGATE,
    MODEL_OPTIONS,
    NUMBER,
    OPTIMISATION_OPTIONS,
    PRICE,
    QUESTION_OPTIONS,
    SERVING_OPTIONS,
    SHARE,
    TEXT,
    WHOLE,
    Field,
    named,
    read_value,
    with_help,
    without,
)
from sizing.specs.errors import InputError, placed

if TYPE_CHECKING:
    from sizing.question.configuration import Configuration

RESERVES, GROWTH, CLOUD, UNCERTAIN = "Reserves", "Growth", "Cloud and fleet", "Uncertainty"
WAYS_TO_PAY = "Ways to pay"
SIMULATION = "Simulation"
TICKS = "Teaching simulator"
OUTPUT = "Output"
OWN = ""  # no panel: a command's own options

SEARCHED = "auto"
Count = NewType("Count", int)
COUNT = Count | None  # a whole number from 1 on

# Arguments and options in the signatures of several commands.
WorkloadName = Annotated[
    str | None, typer.Argument(help="Workload file, or the name of a ready workload (llmsize workloads).")
]
MeasuredRows = Annotated[
    str | None,
    typer.Option("--from", help="Size from measured rows in this CSV (llmsize import), without predictions."),
]
JOBS = Field("jobs", COUNT, ("--jobs",), "Number of processes. Default: one for each core.", OWN)

# Help of these options for a command on a single layout.
ONE_LAYOUT_HELP = {
    "gpu": "One GPU type (llmsize gpus), or the path of a profile.",
    "precision": "Precision of the weights: fp32, fp16, bf16, fp8, fp8_block, int8, int4, nvfp4 or mxfp4. Default: that of the checkpoint.",
    "tp": "Tensor parallelism: GPUs that share each layer, 1 by default.",
    "pp": "Pipeline parallelism: stages that hold some of the layers each, 1 by default.",
    "ep": "Expert parallelism: GPUs among which the experts of a MoE model are divided, 1 by default.",
    "dp": "Data parallelism of attention inside a replica, 1 by default.",
    "max_model_len": "Longest sequence to hold, in tokens; the model's maximum by default.",
    "disaggregate": "Separate pools: prefill=POOL,decode=POOL, where POOL is [COUNTx][GPU][:LAYOUT]: prefill=2xh100-sxm:tp2,decode=h200-sxm:tp4. Parts left out are taken from -g, --tp and so on; the count is then 1.",
}
# Options that affect only memory, not the time of a step.
MEMORY_ALONE = (
    "memory_fraction", "cuda_graphs_gib", "kv_cache_bytes", "max_total_tokens", "prefix_caching", "pp_layers", "limit_mm_per_prompt",
    "language_model_only", "mamba_full_memory_ratio", "max_mamba_cache_size",
)  # fmt: skip
# The options of a command for one GPU type, one precision and one layout.
MEMORY_OPTIONS = with_help((*MODEL_OPTIONS, *SERVING_OPTIONS, *OPTIMISATION_OPTIONS), ONE_LAYOUT_HELP)
STEP_OPTIONS = without(MEMORY_OPTIONS, *MEMORY_ALONE)
PLAN_OPTIONS = (
    Field("spare", WHOLE, ("--spare",), "Spare replicas, not nodes, in addition to those that the peak needs (N+K). To outlast a failed node, state the replicas of a node. Default: 0.", RESERVES),
    Field("availability", TEXT, ("--availability",), "Share of the time in which enough replicas must be up: 99.9%. It needs --node-availability, or --mtbf and --mttr.", RESERVES),
    Field("node_availability", TEXT, ("--node-availability",), "Share of the time in which a node is up: 99%.", RESERVES),
    Field("mtbf", TEXT, ("--mtbf",), "Mean time between two failures of a node: 5000h, 300d or 2y.", RESERVES),
    Field("mttr", TEXT, ("--mttr",), "Mean time to repair a node: 8h or 2d.", RESERVES),
    Field("failures", TEXT, ("--failures",), "What fails together: replica (each by itself, default) or node (all replicas on a node).", RESERVES),
    Field("maintenance", bool, ("--maintenance",), "Have enough replicas while one node is out of service, in addition to spare replicas.", RESERVES),
    Field("growth", TEXT, ("--growth",), "Growth of the demand, compounded: 3%/month, 10%/quarter or 50%/year. A share without a period, 5%, is per month.", GROWTH),
    Field("start", TEXT, ("--from",), "First day of the plan: 2026-12 or 2026-12-31, today by default; or a CSV of measured rows to size from.", GROWTH),
    Field("until", TEXT, ("--until",), "Day on which the growth ends: 2027-12-31. A month ends it on the first day of that month: 2027-12 is 2027-12-01.", GROWTH),
    Field("months", WHOLE, ("--months",), "Number of months that the growth lasts from the first day of the plan, in place of --until: 12 is a year of growth.", GROWTH),
    Field("lead_time", TEXT, ("--lead-time",), "Time from the order of a node until it serves, 12w or 90d: the answer then says by when to order.", GROWTH),
    Field("cloud", TEXT, ("--cloud",), "Rent whole instances of this provider on demand: aws, gcp, azure, lambda ... With --profile their number follows the load.", CLOUD),
    Field("min_replicas", WHOLE, ("--min-replicas",), "Least number of running replicas of each workload at any hour, 1 by default.", CLOUD),
    Field("spot", TEXT, ("--spot",), "Share of spot instances in the GPU-hours above the reserved base: 50%. Default: 0.", CLOUD),
    Field("move", TEXT, ("--move",), "Show the effect of moving a workload to another GPU type: NAME=GPU; several with commas.", CLOUD),
    Field("uncertain", bool, ("--uncertain",), "Give GPUs and cost at P10, P50 and P90. Inputs are drawn from ranges (2..5) in the workload, errors from published runs.", UNCERTAIN),
    Field("price_uncertainty", TEXT, ("--price-uncertainty",), "How much higher or lower prices may be: 20%.", UNCERTAIN, "planning.price_uncertainty"),
    Field("seed", WHOLE, ("--seed",), "Seed of the random draws. The same seed gives the same output.", UNCERTAIN),
    Field("plot", TEXT, ("--plot",), "Draw load and capacity over the hours into this file: .svg, .png or .pdf (needs llmsize[plot]).", OUTPUT),
)  # fmt: skip
COST_OPTIONS = (
    Field("own", TEXT, ("--own",), "Buy servers: hgx-h100, dgx-h100, hgx-h200, or a file that states price, power, hosting and so on; several with commas.", WAYS_TO_PAY),
    Field("cloud", TEXT, ("--cloud",), "Rent from these providers: aws,lambda; on demand, or another kind: nebius:spot.", WAYS_TO_PAY),
    Field("api", TEXT, ("--api",), "Use an API: its $ per million input and output tokens, as 1.0,3.0; or a listed price, as deepseek:deepseek-v3.2 (llmsize prices); several with commas.", WAYS_TO_PAY),
    Field("split", TEXT, ("--split",), "How to divide the cost of a request between input and output: price of an output token divided by that of an input token (3), or time. Default: the API's ratio, else time.", WAYS_TO_PAY),
    Field("plot", TEXT, ("--plot",), "Draw the yearly cost against requests a day into this file: .svg, .png or .pdf (needs llmsize[plot]).", OUTPUT),
)  # fmt: skip
SIMULATION_OPTIONS = (
    Field("policy", TEXT, ("--policy",), "Scheduling: engine, static, dynamic, inflight, one-prefill or chunked; several with commas are compared. Default: engine, that is, as the engine schedules (inflight with --ticks).", SIMULATION),
    Field("replicas", WHOLE, ("--replicas",), "Replicas, that is, engine instances; 1 by default.", SIMULATION),
    Field("slots", WHOLE, ("--slots",), "Most requests that run at once on a replica (on each attention group of it). It limits --max-num-seqs.", SIMULATION),
    Field("batch_size", WHOLE, ("--batch-size",), "Dynamic batching: number of requests of a batch. Default: all slots.", SIMULATION),
    Field("batch_window", TEXT, ("--batch-window",), "Dynamic batching: longest wait until a batch starts: 100ms (a number with --ticks).", SIMULATION),
    Field("requests", WHOLE, ("--requests",), "Number of requests. Without a rate and a concurrency they all arrive at once.", SIMULATION),
    Field("arrivals", TEXT, ("--arrivals",), "Arrival times: poisson, even, or gamma:SHAPE (below 1: in bursts) at a rate; or at-once.", SIMULATION),
    Field("trace", TEXT, ("--trace",), "Take arrival times and lengths from this file: CSV or JSON lines, also as .gz.", SIMULATION),
    Field("isl_std", NUMBER, ("--isl-std",), "Standard deviation of prompt lengths in tokens. Default: all are equal.", SIMULATION),
    Field("osl_std", NUMBER, ("--osl-std",), "Standard deviation of output lengths in tokens. Default: all are equal.", SIMULATION),
    Field("length_shape", TEXT, ("--length-shape",), "Distribution of the lengths: lognormal (default) or normal.", SIMULATION),
    Field("length_ratio", SHARE, ("--length-ratio",), "Draw lengths evenly from this share of the given length up to the given length: 80% or 0.8.", SIMULATION),
    Field("routing", TEXT, ("--routing",), "How requests are sent to replicas: random (default), round-robin, least-requests or power-of-two.", SIMULATION),
    Field("seed", WHOLE, ("--seed",), "Seed of the random draws. The same seed gives the same output.", SIMULATION),
    Field("limit", TEXT, ("--limit",), "End of the run: 60s or 10min (a number with --ticks). Without --requests, the requests that arrive until then are sent.", SIMULATION),
    Field("ticks", bool, ("--ticks",), "Count ticks in place of time, without a model or GPU.", TICKS),
    Field("prefill", NUMBER, ("--prefill",), "Duration of a prefill in ticks, 2 by default.", TICKS),
    Field("prefill_chunks", WHOLE, ("--prefill-chunks",), "Number of steps of a prefill, 1 by default.", TICKS),
    Field("rate", NUMBER, ("--rate",), "Requests per tick, at even distances.", TICKS),
    Field("osl_mean", NUMBER, ("--osl-mean",), "Mean output length in tokens, 4 by default; normally distributed with --osl-std.", TICKS),
    Field("plot", TEXT, ("--plot",), "Draw the run over time into this file: .svg, .png or .pdf (needs llmsize[plot]).", OUTPUT),
    Field("requests_out", TEXT, ("--requests-out",), "Write a row for each request into this CSV file.", OUTPUT),
)  # fmt: skip
OUTPUT_OPTIONS = (
    Field("format", TEXT, ("--format",), "Format of the output: table (default), json, csv or markdown.", OUTPUT),
    Field("json", bool, ("--json",), "Short form of --format json.", OUTPUT),
    Field("verbose", bool, ("--verbose",), "Show all figures, lists and inputs of the answer.", OUTPUT),
    Field("no_verify", bool, ("--no-verify",), "Do not check the answer by simulation: faster, closed form only.", OUTPUT),
    Field("explain", bool, ("--explain",), "Show the formula, the values and the source of each number.", OUTPUT),
    Field("quiet", bool, ("--quiet", "-q"), "Print the number of GPUs alone (with the GPU type if several are asked for).", OUTPUT),
)  # fmt: skip
FORMAT_OPTIONS, VERIFY_OPTIONS = named(OUTPUT_OPTIONS, "format", "json", "verbose"), named(OUTPUT_OPTIONS, "no_verify")
EXPLAIN_OPTIONS, QUIET_OPTIONS = named(OUTPUT_OPTIONS, "explain"), named(OUTPUT_OPTIONS, "quiet")

Command = Callable[..., int | None]
SIMULATING = "Confirming by simulation; --no-verify answers by the closed form, at once"
SWEEPS = "; ranges are for the --vary of llmsize sweep, as --vary rps=5..20"


def with_values(arguments: Iterable[str]) -> list[str]:
    """The command line with a value for --disaggregate: the next word if it is a value, else the value for a search.

    An option or a workload is no value. Another word is a workload if nothing else in the line says what to serve.
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
    """Whether a word is the value of --disaggregate, perhaps with a mistake."""
    if "=" in word or word.lower() == SEARCHED or not word.strip():
        return True
    if word.startswith("-") or _is_workload(word):
        return False
    return any(other.startswith(("-m", "--model")) or _is_workload(other) for other in others)


def _is_workload(word: str) -> bool:
    """Whether a word names a workload file or a ready workload."""
    from sizing.catalog.shelf import find, is_path
    from sizing.catalog.workloads import SHELF

    with suppress(InputError):
        return is_path(word) or bool(find(word, SHELF))
    return False


OF_ONE_RUN = ("set", "plot")  # options of a single run, which can't be settings
_SETTABLE = without((*QUESTION_OPTIONS, *PLAN_OPTIONS, *COST_OPTIONS, *OUTPUT_OPTIONS), *OF_ONE_RUN)
SETTINGS = tuple({option.name: option for option in _SETTABLE}.values())


def settings() -> Configuration:
    """The settings of the working folder, the user and the environment. Raises InputError for wrong settings."""
    from sizing.question.configuration import configuration

    try:
        folder = Path.cwd()
    except OSError:  # the folder was removed meanwhile
        folder = Path()
    return configuration(SETTINGS, folder, os.environ)


def with_settings_of(name: str | None, options: Sequence[Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with settings added. A workload takes precedence over settings, so it is read if it may state the same."""
    from sizing.question.configuration import with_settings, without_settings
    from sizing.question.values import Part

    found = settings()
    if not found.stated:
        return dict(values)
    from sizing.question.names import workload_at

    workload = Part(lambda: None if name is None else workload_at(name).spec)
    read = None if workload.faults else workload.value
    return with_settings(options, without_settings(values), found, read, named=name is not None)


def takes(options: Iterable[Field]) -> Callable[[Command], Command]:
    """Add shared options after a command's own parameters; the command receives them as keywords and returns its exit code.

    An option that is not given gets its value from the settings; a fault then names the place of the setting. A command's own
    options (without a panel) never come from settings.
    """
    options = tuple(options)
    settable = tuple(option for option in options if option.panel != OWN)

    def decorate(command: Command) -> Command:
        @wraps(command)
        def configured(**given: Any) -> int | None:
            from sizing.question.configuration import located

            values = with_settings_of(given.get("workload"), settable, given)
            if values.get("no_verify") is False:
                say_work(SIMULATING)
            with placed(lambda fault: located(fault, settable, values)):
                return command(**values)

        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = list(map(_parameter, options))
        configured.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        configured.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
        return configured

    return decorate


METAVARS: dict[Any, str] = {WHOLE: "INTEGER", NUMBER: "FLOAT", PRICE: "PRICE", SHARE: "SHARE"}


def _parameter(option: Field) -> inspect.Parameter:
    """An option as typer takes it: typer itself reads text, switches and counts, `read_value` the other types."""
    kind, more = option.type, dict[str, Any]()
    if kind == COUNT:
        kind, more = int | None, {"min": 1}
    elif kind == SHARE and option.field:  # a share of a workload is checked with all its other fields
        kind = TEXT
    elif kind in METAVARS:
        more = {"parser": partial(_read, option), "metavar": METAVARS[kind]}
    stated = typer.Option(*option.flags, help=option.help, rich_help_panel=option.panel or None, **more)
    default = False if kind is bool else None
    found = inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default)
    return found.replace(annotation=Annotated[kind, stated])


def _read(option: Field, text: str) -> Any:
    try:
        return read_value(option, text)
    except ValueError as error:
        raise typer.BadParameter(str(error) + (SWEEPS if ".." in text else "")) from None
