"""The options of commands in groups. `takes` adds them to a command, which receives their values as keywords."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NewType

import typer

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
)
from sizing.question.values import whole_number
from sizing.specs.errors import InputError
from sizing.specs.units import parse_number, parse_share

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
WorkloadName = Annotated[str | None, typer.Argument(help="Workload file, or a ready one's name (llmsize workloads).")]
MeasuredRows = Annotated[
    str | None,
    typer.Option("--from", help="CSV of measured rows (llmsize import) to size from, in place of predictions."),
]
JOBS = Field("jobs", COUNT, ("--jobs",), "Processes; all cores without it.", OWN)

# Help of these options for a command on a single layout.
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
# Options that affect only memory, not the time of a step.
MEMORY_ALONE = (
    "memory_fraction",
    "cuda_graphs_gib",
    "kv_cache_bytes",
    "max_total_tokens",
    "prefix_caching",
    "pp_layers",
    "limit_mm_per_prompt",
    "language_model_only",
    "mamba_full_memory_ratio",
    "max_mamba_cache_size",
)


def for_one_layout(options: Iterable[Field]) -> tuple[Field, ...]:
    """The options of a command for one GPU type, one precision and one layout."""
    return tuple(option._replace(help=ONE_LAYOUT_HELP.get(option.name, option.help)) for option in options)


MEMORY_OPTIONS = for_one_layout((*MODEL_OPTIONS, *SERVING_OPTIONS, *OPTIMISATION_OPTIONS))
STEP_OPTIONS = tuple(option for option in MEMORY_OPTIONS if option.name not in MEMORY_ALONE)
PLAN_OPTIONS = (
    Field("spare", WHOLE, ("--spare",), "Spare replicas on top of those that the peak takes: N+K.", RESERVES),
    Field("availability", TEXT, ("--availability",), "Share of time in which enough replicas are up: 99.9%; needs --node-availability, or --mtbf and --mttr.", RESERVES),
    Field("node_availability", TEXT, ("--node-availability",), "Share of time in which a node is up: 99%.", RESERVES),
    Field("mtbf", TEXT, ("--mtbf",), "Mean time between failures of a node: 5000h, 300d, 2y.", RESERVES),
    Field("mttr", TEXT, ("--mttr",), "Mean time to repair a node: 8h, 2d.", RESERVES),
    Field("failures", TEXT, ("--failures",), "What fails together: replica (each by itself, the default) or node (all replicas on it).", RESERVES),
    Field("maintenance", bool, ("--maintenance",), "Keep the size with one node out of service, on top of spare replicas.", RESERVES),
    Field("growth", TEXT, ("--growth",), "Growth of the demand a month: 5%.", GROWTH),
    Field("start", TEXT, ("--from",), "Day of the plan, 2026-12 or 2026-12-31, today by default; or a CSV of measured rows to size from.", GROWTH),
    Field("until", TEXT, ("--until",), "Month up to which the demand grows: 2027-12.", GROWTH),
    Field("cloud", TEXT, ("--cloud",), "Provider whose on-demand price counts (aws, gcp, azure, lambda ...), in whole instances; with a profile they follow the load.", CLOUD),
    Field("min_replicas", WHOLE, ("--min-replicas",), "Replicas of each workload that stay up at all hours, 1 by default.", CLOUD),
    Field("spot", TEXT, ("--spot",), "Share of the GPU-hours above the reserved base that are spot: 50%.", CLOUD),
    Field("move", TEXT, ("--move",), "What changes where a workload runs on another GPU type: NAME=GPU, several with commas.", CLOUD),
    Field("uncertain", bool, ("--uncertain",), "GPUs and cost at P10, P50 and P90 from ranges (2..5) in the workload and the model's error band.", UNCERTAIN),
    Field("price_uncertainty", TEXT, ("--price-uncertainty",), "How far prices may turn out higher or lower: 20%.", UNCERTAIN, "planning.price_uncertainty"),
    Field("seed", WHOLE, ("--seed",), "Seed of the draws; equal seeds give equal output.", UNCERTAIN),
    Field("plot", TEXT, ("--plot",), "Draw load and capacity over the hours into FILE.svg, .png or .pdf (llmsize[plot]).", OUTPUT),
)  # fmt: skip
COST_OPTIONS = (
    Field("own", TEXT, ("--own",), "Own servers: hgx-h100, dgx-h100, hgx-h200, or a file with their price, power, hosting ...", WAYS_TO_PAY),
    Field("cloud", TEXT, ("--cloud",), "Providers to rent from, with commas: aws,lambda; on demand, or a kind: nebius:spot.", WAYS_TO_PAY),
    Field("api", TEXT, ("--api",), "An API's $ per million input and output tokens, 1.0,3.0; or of a provider's list, deepseek:deepseek-v3.2 (llmsize prices).", WAYS_TO_PAY),
    Field("split", TEXT, ("--split",), "How input and output share a request's cost: the price of an output token over an input token (3), or time. Default: the API's ratio, else time.", WAYS_TO_PAY),
    Field("plot", TEXT, ("--plot",), "Draw yearly cost against requests a day into FILE.svg, .png or .pdf (llmsize[plot]).", OUTPUT),
)  # fmt: skip
SIMULATION_OPTIONS = (
    Field("policy", TEXT, ("--policy",), "engine, static, dynamic, inflight, one-prefill, chunked; several with commas run side by side. Default: the engine's own (inflight in ticks).", SIMULATION),
    Field("replicas", WHOLE, ("--replicas",), "Engine instances, 1 by default.", SIMULATION),
    Field("slots", WHOLE, ("--slots",), "Most requests running at once on a replica (on each attention group of it); caps --max-num-seqs.", SIMULATION),
    Field("batch_size", WHOLE, ("--batch-size",), "Dynamic batching: requests that make a batch. Default: every slot.", SIMULATION),
    Field("batch_window", TEXT, ("--batch-window",), "Dynamic batching: the longest wait for a batch, 100ms (ticks: a number).", SIMULATION),
    Field("requests", WHOLE, ("--requests",), "Requests to send; with no rate and no concurrency, all at once.", SIMULATION),
    Field("arrivals", TEXT, ("--arrivals",), "Of a rate: even, poisson, gamma:SHAPE (below 1 clumps); at-once.", SIMULATION),
    Field("trace", TEXT, ("--trace",), "Arrivals and lengths from a CSV or JSON-lines file, .gz too.", SIMULATION),
    Field("isl_std", NUMBER, ("--isl-std",), "Standard deviation of prompt lengths.", SIMULATION),
    Field("osl_std", NUMBER, ("--osl-std",), "Standard deviation of output lengths.", SIMULATION),
    Field("length_shape", TEXT, ("--length-shape",), "lognormal or normal lengths.", SIMULATION),
    Field("length_ratio", SHARE, ("--length-ratio",), "Lengths uniform from this share of the given one to it: 80% or 0.8.", SIMULATION),
    Field("routing", TEXT, ("--routing",), "random (default), round-robin, least-requests or power-of-two over replicas.", SIMULATION),
    Field("seed", WHOLE, ("--seed",), "Seed of all chance; equal seeds give equal output.", SIMULATION),
    Field("limit", TEXT, ("--limit",), "End of the run: 60s, 10min (ticks: a number); without --requests as many are sent as come until then.", SIMULATION),
)  # fmt: skip
TICK_OPTIONS = (
    Field("ticks", bool, ("--ticks",), "Count artificial ticks, without model or GPU.", TICKS),
    Field("prefill", NUMBER, ("--prefill",), "Ticks of a prefill, 2 by default.", TICKS),
    Field("prefill_chunks", WHOLE, ("--prefill-chunks",), "Steps that a prefill is cut into, 1 by default.", TICKS),
    Field("rate", NUMBER, ("--rate",), "Requests per tick, evenly spaced.", TICKS),
    Field("osl_mean", NUMBER, ("--osl-mean",), "Mean output length, 4 by default; normal with --osl-std.", TICKS),
)
FILE_OPTIONS = (
    Field("plot", TEXT, ("--plot",), "Draw the run over time into FILE.svg, .png or .pdf (llmsize[plot]).", OUTPUT),
    Field("requests_out", TEXT, ("--requests-out",), "Write one row a request into a CSV file.", OUTPUT),
)
FORMAT_OPTIONS = (
    Field("format", TEXT, ("--format",), "table, json, csv or markdown.", OUTPUT),
    Field("json", bool, ("--json",), "Short for --format json.", OUTPUT),
    Field("verbose", bool, ("--verbose",), "Show every figure, list and input behind the answer.", OUTPUT),
)
VERIFY_OPTIONS = (Field("no_verify", bool, ("--no-verify",), "Skip the check of the answer by simulation.", OUTPUT),)
EXPLAIN_OPTIONS = (Field("explain", bool, ("--explain",), "Show formula, values and sources of each number.", OUTPUT),)
QUIET_OPTIONS = (
    Field("quiet", bool, ("--quiet", "-q"), "Print the GPU count alone; excludes --json and --format.", OUTPUT),
)


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
SETTINGS = tuple(
    {
        option.name: option
        for option in (
            *QUESTION_OPTIONS, *PLAN_OPTIONS, *COST_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS, *EXPLAIN_OPTIONS, *QUIET_OPTIONS,
        )
        if option.name not in OF_ONE_RUN
    }.values()
)  # fmt: skip


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
    from sizing.catalog.workloads import load_workload

    workload = Part(lambda: None if name is None else load_workload(name).spec)
    read = None if workload.faults else workload.value
    return with_settings(options, without_settings(values), found, read, named=name is not None)


def takes(options: Iterable[Field]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add shared options after a command's own parameters; the command receives them as keywords.

    An option that is not given gets its value from the settings; a fault then names the place of the setting. A command's own
    options (without a panel) never come from settings.
    """
    options = tuple(options)
    settable = tuple(option for option in options if option.panel != OWN)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def configured(**given: Any) -> None:
            from sizing.question.configuration import located

            values = with_settings_of(given.get("workload"), settable, given)
            try:
                command(**values)
            except InputError as error:
                raise InputError(located(fault, settable, values) for fault in error.faults) from None

        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if option.type is bool else None,
                annotation=Annotated[
                    _kind(option),
                    typer.Option(
                        *option.flags,
                        help=option.help,
                        rich_help_panel=option.panel or None,
                        **_reading(option.type if option.type == COUNT else _kind(option)),
                    ),
                ],
            )
            for option in options
        ]
        configured.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        configured.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
        return configured

    return decorate


def _kind(option: Field) -> Any:
    """The type that typer reads. A share is read as text, so that a wrong share is reported with all other faults."""
    return TEXT if option.type == SHARE and option.field else int | None if option.type == COUNT else option.type


def _reading(kind: Any) -> dict[str, Any]:
    """The parser of a number and its name in help. Typer parses other types."""
    if kind == COUNT:
        return {"min": 1}
    if kind == WHOLE:
        return {"parser": _number(whole_number, "whole number"), "metavar": "INTEGER"}
    if kind == NUMBER:
        return {"parser": _number(parse_number, "number"), "metavar": "FLOAT"}
    if kind == PRICE:
        return {"parser": _price, "metavar": "PRICE"}
    if kind == SHARE:
        return {"parser": _number(parse_share, "share, as 90% or 0.9"), "metavar": "SHARE"}
    return {}


def _number(kind: Callable[[str], float], noun: str) -> Callable[[str], float]:
    """A parser of a number that rejects other text with a plain message."""

    def read(text: str) -> float:
        try:
            return kind(text)
        except ValueError as error:
            shares = kind is parse_share  # its message suggests what may be meant
            raise typer.BadParameter(str(error) if shares else f"{text!r} is no {noun}") from None

    return read


def _price(text: str) -> float | str:
    """A number, or text with prices by GPU type, which the question reads."""
    return text if "=" in text else _number(parse_number, "number")(text)
