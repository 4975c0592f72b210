"""The options of commands in groups. `takes` adds them to a command, which receives their values as keywords."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sizing.cli.output import say_work
from sizing.question.options import (
    COUNT,
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
    GivenOptions,
    named,
    option_table,
    read_value,
    with_help,
    without,
)
from sizing.specs.errors import InputError, placed

if TYPE_CHECKING:
    from sizing.question.configuration import Configuration

RESERVES, GROWTH = "Reserves", "Growth"
WAYS_TO_PAY = "Ways to pay"
GIVEN = "given"  # the parameter of a command that has its options

SEARCHED = "auto"

# Arguments and options in the signatures of several commands.
WorkloadName = Annotated[
    str | None, typer.Argument(help="Workload file, or the name of a ready workload (llmsize workloads).")
]
JOBS, MEASURED_OPTIONS = option_table("jobs"), option_table("measured")

# Options that affect only memory, not the time of a step.
MEMORY_ALONE = (
    "memory_fraction", "cuda_graphs_gib", "kv_cache_bytes", "max_total_tokens", "prefix_caching", "pp_layers", "limit_mm_per_prompt",
    "language_model_only", "mamba_full_memory_ratio", "max_mamba_cache_size",
)  # fmt: skip
# The options of a command for one GPU type, one precision and one layout.
MEMORY_OPTIONS = with_help((*MODEL_OPTIONS, *SERVING_OPTIONS, *OPTIMISATION_OPTIONS), "one layout")
STEP_OPTIONS = without(MEMORY_OPTIONS, *MEMORY_ALONE)
PLAN_OPTIONS, COST_OPTIONS = option_table("plan"), option_table("cost")
SIMULATION_OPTIONS, OUTPUT_OPTIONS = option_table("simulation"), option_table("output")
FORMAT_OPTIONS, VERIFY_OPTIONS = named(OUTPUT_OPTIONS, "format", "json", "verbose"), named(OUTPUT_OPTIONS, "no_verify")
EXPLAIN_OPTIONS, QUIET_OPTIONS = named(OUTPUT_OPTIONS, "explain"), named(OUTPUT_OPTIONS, "quiet")

Command = Callable[..., int | None]
SIMULATING = "Confirming by simulation; --no-verify answers by the closed form, at once"
SWEEPS = "; ranges are for the --vary of llmsize sweep, as --vary rps=5..20"


class SimulateOptions(NamedTuple):
    """The options of `simulate` itself, and those of the question that mean another thing there."""

    policy: str | None
    replicas: int | None
    slots: int | None
    batch_size: int | None
    batch_window: str | None
    requests: int | None
    arrivals: str | None
    trace: str | None
    isl_std: float | None
    osl_std: float | None
    length_shape: str | None
    length_ratio: float | None
    routing: str | None
    seed: int | None
    limit: str | None
    ticks: bool
    plot: str | None
    requests_out: str | None
    prefill: float | None
    prefill_chunks: int | None
    rate: float | None
    osl_mean: float | None
    osl: int | None
    itl: str | None
    concurrency: int | None
    model: str | None
    gpu: str | None


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


def with_settings_of(name: str | None, given: GivenOptions) -> GivenOptions:
    """The options with settings added. A workload takes precedence over settings, so it is read if it may state the same."""
    from sizing.question.configuration import with_settings

    found = settings()
    if not found.stated:
        return given.without_settings()
    from sizing.question.names import readable

    return with_settings(given.without_settings(), found, readable(name), named=name is not None)


def takes(options: Iterable[Field]) -> Callable[[Command], Command]:
    """Add shared options after a command's own parameters; the command receives them as `given`, and returns its exit code.

    An option that is a parameter of the command too comes by itself. One that is not given gets its value from the settings; a
    fault then names the place of the setting.
    """
    shared = {option.name: option for option in options}

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name not in (*shared, GIVEN)]
        named = [name for name in signature.parameters if name in shared]
        parameters = [*own, *map(_parameter, shared.values())]

        @wraps(command)
        def configured(**stated: Any) -> int | None:
            from sizing.question.configuration import located

            values = {name: stated.pop(name) for name in shared}
            given = with_settings_of(stated.get("workload"), GivenOptions(tuple(shared.values()), values))
            if given.values.get("no_verify") is False:
                say_work(SIMULATING)
            with placed(lambda fault: located(fault, given)):
                return command(**{GIVEN: given}, **stated, **{name: given.values[name] for name in named})

        configured.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        configured.__annotations__ = {p.name: p.annotation for p in parameters}
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
